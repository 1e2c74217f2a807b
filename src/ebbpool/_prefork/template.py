"""The template of `ebbpool.prefork`: a process with one thread, which imports once and forks every child.

Its parent starts it in a new interpreter, so it has no thread of the parent's, and asks it for children on a Unix
socket. It tells the parent the process id and the end of each; it ends when the parent does.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import spawn
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ebbpool._prefork import child
from ebbpool._prefork.own_signals import OwnSignals, noted
from ebbpool._stdio import flush_or_discard

if TYPE_CHECKING:
    from multiprocessing.context import ForkProcess

OURS: Final = ("ebbpool.socketserver", "ctypes")
"""What every template imports: pools use ctypes. None of it starts a thread, and none of it is user code."""
MOST_DESCRIPTORS: Final = 253
"""How many descriptors Linux sends in one message."""

News: TypeAlias = tuple[int, int | None, int | None, Exception | None]
"""The serial of a child, and its process id, or its exit code, or why it could not be started."""


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Block the parent's signals, so that a new process, which inherits the mask, gets none before it handles them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, child.FROM_THE_PARENT)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Pickler(ForkingPickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.descriptors: list[int] = []

    def persistent_id(self, thing: Any) -> tuple[bool, int] | None:
        if not isinstance(thing, (socket.socket, Connection)):
            return None
        self.descriptors.append(thing.fileno())
        return isinstance(thing, Connection), len(self.descriptors) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, descriptors: Sequence[int]) -> None:
        super().__init__(file)
        self._descriptors = descriptors

    def persistent_load(self, which: tuple[bool, int]) -> Any:
        connection, index = which
        descriptor = self._descriptors[index]
        return Connection(descriptor) if connection else _socket_of(descriptor)


def _socket_of(descriptor: int) -> socket.socket:
    """Return a socket that does not block the others that share the descriptor.

    PyPy makes the descriptor blocking for all processes when it makes a socket of it, and one that is about to accept
    a connection that another one takes would hang. So the socket is made non-blocking there.
    """
    if sys.implementation.name != "pypy":
        return socket.socket(fileno=descriptor)
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(0)
    try:
        return socket.socket(fileno=descriptor)
    finally:
        socket.setdefaulttimeout(before)


def packed(thing: object) -> tuple[bytes, list[int]]:
    """Return a pickle of `thing`, and the descriptors of the sockets and pipes in it."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(thing)
    return file.getvalue(), pickler.descriptors


def unpacked(pickled: bytes, descriptors: Sequence[int]) -> Any:
    """Return what was packed; its sockets and pipes take over the descriptors."""
    return _Unpickler(io.BytesIO(pickled), descriptors).load()


def _send(link: Connection, pickled: bytes, descriptors: Sequence[int]) -> None:
    with socket.socket(fileno=os.dup(link.fileno())) as through:
        socket.send_fds(through, [b"d"], descriptors)
    link.send_bytes(pickled)


def _receive(link: Connection) -> tuple[bytes, list[int]]:
    with socket.socket(fileno=os.dup(link.fileno())) as through:
        mark, descriptors, _, _ = socket.recv_fds(through, 1, MOST_DESCRIPTORS)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    if not mark:
        raise EOFError
    return link.recv_bytes(), descriptors


class Template:
    """A template, as its parent sees it.

    Args:
        serve: What every child calls; picklable.
        preload: Modules that the template imports, beside the main module and that of `serve`; None if it is to import
            none of these, and each child does that for itself.

    Attributes:
        alive: Whether it has not ended yet, as far as `news` has told.

    Raises:
        OSError: The system refuses another process, or descriptors.
    """

    def __init__(self, serve: Callable[[child.Child], object], preload: Sequence[str] | None) -> None:
        self.alive = True
        data: dict[str, Any] = spawn.get_preparation_data("ebbpool-prefork-template")
        data["authkey"] = bytes(data["authkey"])
        own = {key: data.pop(key) for key in list(data) if key.startswith("init_main_")}
        code = f"import sys; sys.path[:] = {data['sys_path']!a}; from {__name__} import main; main({{}})"
        pickled, descriptors = packed(serve)
        self._link, theirs = Pipe()
        try:
            with theirs, blocked():
                *command, _, _ = spawn.get_command_line()
                self._process = subprocess.Popen(
                    [*command, code.replace("{}", str(theirs.fileno()))], pass_fds=[theirs.fileno()]
                )
            self._ask((data, own, preload, pickled), descriptors)
        except BaseException:
            self._link.close()
            raise

    def start(self, serial: int, name: str, args: tuple[Any, ...]) -> None:
        """Have a child started; `news` tells what has become of it.

        Args:
            serial: What `news` calls it.
            name: The name of the process.
            args: What `child.main` gets after `serve`.
        """
        pickled, descriptors = packed(args)
        self._ask((serial, name, pickled), descriptors)
        self.resume()

    def _ask(self, message: object, descriptors: Sequence[int]) -> None:
        # That it has ended is told by `news`.
        with contextlib.suppress(ConnectionError):
            _send(self._link, pickle.dumps(message), descriptors)

    def sources(self) -> list[Any]:
        """Return what can be waited for: it can be read when there are news."""
        return [self._link] if self.alive else []

    def news(self) -> Iterator[News]:
        """Yield what has happened, without waiting."""
        while self.alive:
            try:
                if not self._link.poll():
                    return
                what = self._link.recv()
            except (EOFError, OSError):
                self.alive = False
            else:
                if isinstance(what, str):
                    child.log(logging.WARNING, {"event": "template_threads", "threads": what})
                else:
                    yield what

    def resume(self) -> None:
        """Continue the process, which somebody may have stopped."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process; its children live on."""
        child.log(logging.WARNING, {"event": "template_killed", "pid": self._process.pid})
        self._process.kill()

    def forsake(self) -> None:
        """In a process that was forked from this one: close what belongs to this one."""
        self._link.close()

    def close(self) -> None:
        """End the process, which has no more children to tell of."""
        self._process.kill()
        self._process.wait()
        self._link.close()


def main(descriptor: int) -> None:
    """Run a template, in the main thread of a new interpreter, until its parent ends."""
    link = Connection(descriptor)
    os.set_inheritable(descriptor, False)
    message, descriptors = _receive(link)
    data, own, preload, serve = pickle.loads(message)
    for name in OURS:
        importlib.import_module(name)
    _prepare(data)
    if preload is not None:
        _prepare(own)
        unpacked(serve, [os.dup(number) for number in descriptors])
        for name in preload:
            importlib.import_module(name)
        own = {}
    others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    try:
        if others:
            link.send(", ".join(others))
        _Forks(link, own, (serve, descriptors)).run()
    except (EOFError, OSError):
        # The parent is gone. The children notice that by themselves, and are not to be waited for.
        os._exit(0)


def _prepare(data: dict[str, Any]) -> None:
    """Make this process like the one that has told `data`."""
    process: Any = multiprocessing.current_process()
    process._inheriting = True
    try:
        spawn.prepare(data)
    finally:
        del process._inheriting


class _Forks:
    """What a template does once it has imported everything."""

    def __init__(self, link: Connection, own: dict[str, Any], serve: tuple[bytes, list[int]]) -> None:
        self._link = link
        self._own = own
        self._serve = serve
        self._context = multiprocessing.get_context("fork")
        self._children: dict[int, ForkProcess] = {}
        self._signals = OwnSignals({signal.SIGCHLD: noted}, link.close)

    def run(self) -> None:
        """Fork children until the parent is gone.

        Raises:
            EOFError: The parent is gone.
            OSError: The parent is gone.
        """
        self._signals.install()
        while True:
            asked = self._link in wait([self._link, self._signals.bell])
            self._signals.received()
            for serial, process in list(self._children.items()):
                if process.exitcode is not None:
                    del self._children[serial]
                    self._link.send((serial, None, process.exitcode, None))
                    process.close()
            if asked:
                self._start(*_receive(self._link))

    def _start(self, message: bytes, descriptors: list[int]) -> None:
        serial, name, pickled = pickle.loads(message)
        process = self._context.Process(target=self._main, args=(pickled, descriptors), name=name, daemon=False)
        flush_or_discard(sys.stdout, sys.stderr)
        try:
            process.start()
        except OSError as error:
            self._link.send((serial, None, None, error))
        else:
            self._children[serial] = process
            self._link.send((serial, process.pid, None, None))
        for descriptor in descriptors:
            os.close(descriptor)

    def _main(self, pickled: bytes, descriptors: list[int]) -> None:
        """Run a child, in the process that was forked for it."""
        _prepare(self._own)
        child.main(unpacked(*self._serve), *unpacked(pickled, descriptors))
