"""What all pools of this process are doing; the one thread that answers all who look; the file of its Unix socket."""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import logging
import os
import re
import reprlib
import selectors
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from ebbpool._interpreter import daemon_threads, interpreter
from ebbpool._monitor import PRIVATE, RESIDENT, THREAD, VARIABLE
from ebbpool._pool import lifecycle
from ebbpool._pool.threads import WorkerThread
from ebbpool._stdio import Bell
from ebbpool._unix import identity, must_be_free, opened, peer, refused, remove
from ebbpool._version import __version__

if TYPE_CHECKING:
    from typing import Self

LOGGER: Final = logging.getLogger("ebbpool.monitor")
LONGEST: Final = 1 << 16
"""How many bytes a request may have."""
REQUESTS: Final = {
    '{"get": "snapshot"}': False,
    '{"get": "snapshot", "stacks": false}': False,
    '{"get": "snapshot", "stacks": true}': True,
}
"""Whether stacks are asked for, by what can be asked, as `json.dumps` writes it."""
TIMEOUT: Final = 1.0
"""Seconds for which a client may keep the thread waiting, and `close`; and until a failed accept is retried."""

_open: dict[int, Listener] = {}
"""The listeners that are open, or have not quite ended."""
_connections: WeakSet[socket.socket] = WeakSet()
"""The connections to those who ask, or have attached to this process."""
_asked = False
"""Whether this process has looked at the environment."""


def from_environment() -> None:
    """Listen at the path that `EBBPOOL_MONITOR` names, if it does; only the first call in a process looks."""
    global _asked
    if _asked:
        return
    _asked = True
    path = os.environ.get(VARIABLE)
    try:
        if path:
            Listener(path, resident=True)
    except (OSError, RuntimeError, ValueError) as error:
        # The program goes on.
        hint = "; put {pid} into the path" if getattr(error, "errno", None) == errno.EADDRINUSE else ""
        LOGGER.warning("%s=%s is not used: %s%s", VARIABLE, path, error, hint)


def _path_of(value: Any) -> str:
    """Return `value` as a path, in which ``{pid}`` may stand for the number of the process."""
    try:
        path = os.fsdecode(value)
        if path and b"\0" not in os.fsencode(path):
            return path
    except TypeError:
        raise TypeError(f"path must be a string or a path, not {value!r}") from None
    except UnicodeEncodeError:
        pass
    raise ValueError(f"path must name a file, not {value!r}")


@contextlib.contextmanager
def _hidden(folder: str, name: str) -> Iterator[tuple[str, int]]:
    """Make a directory that nobody else can enter, so that nobody finds the file `name` in it before its mode is set.

    Yield the path of that file and a descriptor of the directory: in a folder of another user there may be a link in
    its place by now. Both are removed at the end.
    """
    path = tempfile.mkdtemp(prefix=PRIVATE, dir=folder)
    try:
        with opened(path, os.O_NOFOLLOW) as place:
            found = os.fstat(place)
            if found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise PermissionError(errno.EPERM, "another user has put something in the place of a directory of ours")
            try:
                yield os.path.join(path, name), place
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=place)
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(path)


def _bound(path: str) -> tuple[socket.socket, tuple[int, int]]:
    """Return a socket that listens at `path`, which only this user and root may open, and the identity of its file."""
    if not hasattr(socket, "AF_UNIX"):
        raise RuntimeError(f"cannot listen on {path!r}: this Python has no Unix sockets")
    folder, name = os.path.split(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with opened(folder) as place, _hidden(folder, name) as (inside, hidden):
            listener.bind(inside)
            made = identity(name, hidden)
            os.chmod(name, 0o600, dir_fd=hidden)
            listener.listen(128)
            listener.setblocking(False)
            must_be_free(path)
            # Where two processes come to this line at once, the later one has the path.
            os.rename(name, name, src_dir_fd=hidden, dst_dir_fd=place)
    except BaseException as error:
        listener.close()
        if isinstance(error, OSError):
            raise refused(path, error) from None
        raise
    return listener, made


def _sweep(pattern: str) -> None:
    """Remove the sockets at paths of a pattern with ``{pid}`` in it, which processes that were killed have left."""
    folder, name = os.path.split(os.path.abspath(pattern))
    ours = re.compile(re.escape(name).replace(r"\{pid\}", "[0-9]+"))
    for path in [os.path.join(folder, each) for each in os.listdir(folder) if ours.fullmatch(each)]:
        with contextlib.suppress(OSError):
            made = identity(path)
            must_be_free(path)
            remove(path, made)


def snapshot(stacks: bool = False) -> dict[str, Any]:
    """Return what all pools of this process are doing, for JSON; docs/monitor.md explains each field.

    A pool that has been shut down is among them for as long as it has threads: what they do may be what its shutdown
    waits for.

    Args:
        stacks: Whether each running task comes with its stack.
    """
    pools = []
    for crew, pool in lifecycle.in_view():
        if pool is None:
            continue
        try:
            figures = {
                **asdict(pool.stats()),
                "closed": bool(crew.pool.closed),
                "lanes": [asdict(lane.stats()) for lane in pool.lanes()],
                "tasks": [asdict(task) for task in pool.running(stacks=stacks)],
                "decisions": [asdict(decision) for decision in pool.decisions()],
            }
        except Exception:
            # A subclass may do what it likes; it must not keep the others from being seen.
            LOGGER.exception("the figures of pool %r cannot be read", crew.name)
        else:
            pools.append(figures)
    return {
        "ebbpool": __version__,
        "pid": os.getpid(),
        "python": interpreter(),
        "time": time.time(),
        "pools": pools,
        "others": lifecycle.others(),
    }


def _answer(line: bytes) -> bytes:
    """Return the answer to one request; what cannot be answered is told why. Does not raise."""
    try:
        try:
            stacks = REQUESTS[json.dumps(json.loads(line), sort_keys=True)]
        except (ValueError, RecursionError, KeyError):
            wanted = '{"get": "snapshot"} on one line, where "stacks": true or false may be added'
            return _encoded(error=f"a request must be {wanted}, not {reprlib.repr(line)}")
        return _encoded(**snapshot(stacks))
    except Exception as error:
        return _encoded(error=f"{type(error).__name__}: {error}")


def _encoded(**reply: Any) -> bytes:
    return json.dumps(reply, separators=(",", ":")).encode() + b"\n"


def answer(connection: socket.socket) -> None:
    """Answer one who has attached to this process, until they leave; in a thread that does nothing else."""
    _leave_signals_to_others()
    _connections.add(connection)
    with connection.makefile("rb") as requests:
        # What is too long is cut off.
        while line := requests.readline(LONGEST):
            connection.sendall(_answer(line.strip()))


def _leave_signals_to_others() -> None:
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


class Listener:
    """A Unix socket on which this process tells what its pools are doing; see `listen`.

    It is closed by `close`, at the end of a ``with`` block, and when the process exits.

    Attributes:
        path: Where it listens.
    """

    __module__ = "ebbpool.monitor"

    path: str

    def __init__(self, path: str | os.PathLike[str], *, resident: bool = False) -> None:
        self._pattern = _path_of(path)
        self._resident = resident
        self._start()

    def _start(self) -> None:
        self.path = os.path.abspath(self._pattern.replace("{pid}", str(os.getpid())))
        self._socket, self._identity = _bound(self.path)
        if "{pid}" in self._pattern:
            with contextlib.suppress(OSError):
                _sweep(self._pattern)
        self._bell = Bell()
        self._selector = selectors.DefaultSelector()
        # The start must not wait: it may be made in a fork hook.
        self._thread = WorkerThread(target=self._run, name=RESIDENT if self._resident else THREAD)
        self._ends = threading.Lock()
        _open[id(self)] = self
        try:
            self._thread.start()
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        """Stop listening and remove the socket's file; again is no error."""
        self._bell.ring()
        if threading.current_thread() is not self._thread:
            self._thread.join(TIMEOUT)
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.path!r}{'' if id(self) in _open else ', closed'}>"

    def _end(self) -> None:
        if self._ends.acquire(False):
            remove(self.path, self._identity)
            self._let_go()

    def _let_go(self) -> None:
        _open.pop(id(self), None)
        self._bell.close()
        self._socket.close()
        # Nothing is unregistered: in a forked child that would change what the parent's selector watches.
        self._selector.close()

    def _forked(self) -> None:
        """In a forked child: leave the socket to the parent, and listen again if the path is the child's own."""
        global _asked
        was_open = self._ends.acquire(False)
        self._let_go()
        if not was_open or "{pid}" not in self._pattern:
            return
        if sys.implementation.name == "pypy":
            # A thread that is started in a fork hook may crash PyPy. The child's first pool asks the environment again.
            _asked = not self._resident
            return
        try:
            self._start()
        except (OSError, RuntimeError) as error:
            LOGGER.warning("the process forked, and its child cannot be watched: %s", error)

    def _run(self) -> None:
        _leave_signals_to_others()
        try:
            self._serve()
        except Exception:
            if id(self) in _open:
                LOGGER.exception("%r has failed", self)
        finally:
            self._end()

    def _serve(self) -> None:
        for source in (self._bell.ear, self._socket):
            self._selector.register(source, selectors.EVENT_READ)
        while all(key.fileobj is not self._bell.ear for key, _ in self._selector.select()):
            self._accept()

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            LOGGER.warning("%r cannot accept: %s", self, error)
            # The system has run out of something.
            time.sleep(TIMEOUT)
            return
        _connections.add(connection)
        with connection, contextlib.suppress(OSError):
            connection.settimeout(TIMEOUT)
            # Where the platform does not say whose it is, the mode of the socket's file has to do.
            other = peer(connection)
            if other is not None and other[1] not in (0, os.geteuid()):
                connection.sendall(_encoded(error="this process belongs to another user"))
            elif line := connection.recv(LONGEST):
                # It comes in one piece: a client that sends a byte now and then would hold up the others.
                connection.sendall(_answer(line.strip()))


def _close_all() -> None:
    for listener in list(_open.values()):
        listener.close()


def _after_fork() -> None:
    for connection in list(_connections):
        # A file made of it, which the thread reads from, keeps it open.
        with contextlib.suppress(OSError):
            os.close(connection.detach())
    for listener in list(_open.values()):
        listener._forked()


# `atexit` comes after the pools have been waited for, so that a task that hangs at the exit can still be looked at. But
# a thread that is no daemon would be waited for before that.
if daemon_threads():
    atexit.register(_close_all)
else:
    lifecycle.before_exit(_close_all)
lifecycle.after_fork(_after_fork)
