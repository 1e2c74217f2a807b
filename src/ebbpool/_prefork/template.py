"""The template, which forks the children of `ebbpool.prefork`.

It is a process with one thread, which imports once and forks every child. Its parent starts it in a new interpreter, so
it has no thread of the parent's, and asks it for children on a Unix socket. It tells the parent the process id and the
end of each; it ends when the parent does.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import logging
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing import spawn
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final, TypeAlias

from ebbpool._prefork.child import log
from ebbpool._prefork.signals import OwnSignals, blocked
from ebbpool._stdio import flush_or_discard

OURS: Final = ("ebbpool.socketserver", "ctypes")
"""What every template imports: pools use ctypes. None of it starts a thread, and none of it is user code."""

Work: TypeAlias = Callable[[socket.socket, int, socket.socket], object]
"""What a child does: picklable, called with the listener, its number, and its end of the line to the parent."""
News: TypeAlias = tuple[int, int | None, int | OSError | None]
"""The serial of a child, and its process id; or how it ended: its exit code, or why it could not be started."""


class Template:
    """A template, as its parent sees it.

    It imports the main module and that of `work` if `preload`; otherwise each child does that for itself.
    """

    def __init__(self, work: Work, preload: bool, listener: socket.socket) -> None:
        self.alive = True  # as far as `news` has told
        data: dict[str, Any] = spawn.get_preparation_data("")
        # A child would take this name for its own.
        del data["name"]
        data["authkey"] = bytes(data["authkey"])
        # `Connection` frames messages, and the socket carries descriptors: both use the one descriptor.
        self._socket, theirs = socket.socketpair()
        self.link = Connection(self._socket.fileno())
        try:
            with theirs, blocked():
                passed = theirs.fileno(), listener.fileno()
                code = f"import sys; sys.path[:] = {data['sys_path']!a}; from {__name__} import main; main{passed}"
                *command, _, _ = spawn.get_command_line()
                self._process = subprocess.Popen([*command, code], pass_fds=passed)
            with contextlib.suppress(ConnectionError):
                self.link.send((data, preload, pickle.dumps(work)))
        except BaseException:
            self.forsake()
            raise

    def start(self, serial: int, number: int, line: socket.socket) -> None:
        """Have child `number` started; `news` tells under its serial what has become of it."""
        # That it has ended is told by `news`.
        with contextlib.suppress(ConnectionError):
            self.link.send((serial, number))
            socket.send_fds(self._socket, [b"d"], [line.fileno()])

    def news(self) -> Iterator[News]:
        """Yield what has happened, without waiting."""
        while self.alive:
            try:
                if not self.link.poll():
                    return
                what = self.link.recv()
            except (EOFError, OSError):
                self.alive = False
            else:
                yield what

    def kill(self) -> None:
        """Kill the process; its children live on."""
        log(logging.WARNING, "template_killed", pid=self._process.pid)
        self._process.kill()

    def forsake(self) -> None:
        """Close the link; in a process that was forked from this one that is all there is to do."""
        self._socket.detach()
        self.link.close()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self.forsake()


def main(descriptor: int, listener: int) -> None:
    """Run a template, in the main thread of a new interpreter, until its parent ends."""
    os.set_inheritable(descriptor, False)
    link = Connection(descriptor)
    data, preload, work = link.recv()
    for name in OURS:
        importlib.import_module(name)
    call = _prepared(data, work) if preload else functools.partial(_prepare_and_run, data, work)
    others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if others:
        log(logging.WARNING, "template_threads", threads=", ".join(others))
    # The parent's end, closed, is noticed by the children themselves, which are not to be waited for.
    with contextlib.suppress(EOFError, OSError):
        _fork(link, call, _socket(listener))
    os._exit(0)


def _prepared(data: dict[str, Any], work: bytes) -> Any:
    """Make this process like the one that has told `data`; return what is pickled in `work`."""
    process: Any = multiprocessing.current_process()
    process._inheriting = True
    try:
        spawn.prepare(data)
    finally:
        del process._inheriting
    return pickle.loads(work)


def _prepare_and_run(data: dict[str, Any], work: bytes, *arguments: object) -> None:
    _prepared(data, work)(*arguments)


def _fork(link: Connection, call: Work, listener: socket.socket) -> None:
    """Fork children until the parent is gone, which is an error: EOFError or OSError."""
    context: Any = multiprocessing.get_context("fork")
    children: dict[int, BaseProcess] = {}
    through = socket.socket(fileno=link.fileno())

    def forsake() -> None:
        through.detach()
        link.close()

    signals = OwnSignals([signal.SIGCHLD], forsake)
    signals.install()
    while True:
        asked = link in wait([link, signals.ear])
        signals.hear()
        if asked:
            serial, number = link.recv()
            _, descriptors, _, _ = socket.recv_fds(through, 1, 1)
            flush_or_discard(sys.stdout, sys.stderr)
            try:
                if not descriptors:
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                with _socket(descriptors[0]) as line, blocked():
                    name = f"ebbpool-prefork-{number}"
                    process = context.Process(target=call, args=(listener, number, line), name=name, daemon=False)
                    process.start()
            except OSError as error:
                link.send((serial, None, error))
            else:
                children[serial] = process
                link.send((serial, process.pid, None))
        for serial, process in list(children.items()):
            if process.exitcode is not None:
                link.send((serial, None, process.exitcode))
                children.pop(serial).close()


def _socket(descriptor: int) -> socket.socket:
    """Return a socket that does not block, from the start: other processes share the descriptor of a listener."""
    # PyPy makes the descriptor blocking for all of them when it makes a socket of it, and one that is about to accept a
    # connection that another one takes would hang.
    os.set_inheritable(descriptor, False)
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(0)
    try:
        return socket.socket(fileno=descriptor)
    finally:
        socket.setdefaulttimeout(before)
