"""What makes the children of `ebbpool.prefork`: a template that forks them or, where nothing can be forked, a spawner.

The template is a process with one thread, which imports once and forks every child. Its parent starts it in a new
interpreter, so it has no thread of the parent's, and asks it for children on a Unix socket. It tells the parent the
process id and the end of each; it ends when the parent does.
"""

from __future__ import annotations

import contextlib
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
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import spawn
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final, TypeAlias

from ebbpool._prefork.child import log
from ebbpool._prefork.signals import OwnSignals, blocked
from ebbpool._stdio import flush_or_discard

OURS: Final = ("ebbpool.socketserver", "ctypes")
"""What every template imports: pools use ctypes. None of it starts a thread, and none of it is user code."""

Work: TypeAlias = Callable[[socket.socket, int, socket.socket], object]
"""What a child does: picklable, called with its listener, its number, and its end of the line to the parent."""
News: TypeAlias = tuple[int, int | None, int | Exception | None]
"""The serial of a child, and its process id; or how it ended: its exit code, or why it could not be started."""


class Template:
    """A template, as its parent sees it.

    It imports the main module, that of `work` and those of `preload`; with None each child does that for itself.
    """

    def __init__(self, work: Work, preload: Sequence[str] | None) -> None:
        self.alive = True  # as far as `news` has told
        data: dict[str, Any] = spawn.get_preparation_data("ebbpool-prefork-template")
        data["authkey"] = bytes(data["authkey"])
        own = {key: data.pop(key) for key in list(data) if key.startswith("init_main_")}
        self._link, theirs = Pipe()
        try:
            with theirs, blocked():
                link = theirs.fileno()
                code = f"import sys; sys.path[:] = {data['sys_path']!a}; from {__name__} import main; main({link})"
                *command, _, _ = spawn.get_command_line()
                self._process = subprocess.Popen([*command, code], pass_fds=[link])
            self._ask((data, own, preload, pickle.dumps(work)))
        except BaseException:
            self._link.close()
            raise

    def start(self, serial: int, number: int, *sockets: socket.socket) -> None:
        """Have child `number` started; `news` tells under its serial what has become of it."""
        self._ask((serial, number), sockets)

    def _ask(self, message: object, sockets: Sequence[socket.socket] = ()) -> None:
        # That it has ended is told by `news`.
        with contextlib.suppress(ConnectionError):
            self._link.send(message)
            if sockets:
                with socket.socket(fileno=os.dup(self._link.fileno())) as through:
                    socket.send_fds(through, [b"d"], [each.fileno() for each in sockets])

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
                    log(logging.WARNING, "template_threads", pid=self._process.pid, threads=what)
                else:
                    yield what

    def kill(self) -> None:
        """Kill the process; its children live on."""
        log(logging.WARNING, "template_killed", pid=self._process.pid)
        self._process.kill()

    def forsake(self) -> None:
        """Close the link in a process that was forked from this one."""
        self._link.close()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._link.close()


class Starter:
    """Starts each child itself, by multiprocessing's `method`, and tells of them as a `Template` does; never ends."""

    def __init__(self, method: str, work: Work) -> None:
        self.alive = True
        self._context: Any = multiprocessing.get_context(method)
        self._work = work
        self._children: dict[int, BaseProcess] = {}
        self._new: list[News] = []

    def start(self, serial: int, number: int, listener: socket.socket, line: socket.socket) -> None:
        flush_or_discard(sys.stdout, sys.stderr)
        name = f"ebbpool-prefork-{number}"
        process = self._context.Process(target=self._work, args=(listener, number, line), name=name, daemon=False)
        try:
            with blocked():
                process.start()
        except OSError as error:
            self._new.append((serial, None, error))
        else:
            self._children[serial] = process
            self._new.append((serial, process.pid, None))

    def sources(self) -> list[Any]:
        return [process.sentinel for process in self._children.values()]

    def news(self) -> Iterator[News]:
        yield from self._new
        self._new.clear()
        for serial, process in list(self._children.items()):
            if process.exitcode is not None:
                yield serial, None, process.exitcode
                del self._children[serial]
                process.close()

    def nothing(self) -> None:
        """Do nothing: no process between this one and the children has to be killed or left."""

    kill = forsake = nothing

    def close(self) -> None:
        """Wait for the end of the children, which have been killed if there are any."""
        for process in self._children.values():
            process.join()


def main(descriptor: int) -> None:
    """Run a template, in the main thread of a new interpreter, until its parent ends."""
    os.set_inheritable(descriptor, False)
    link = Connection(descriptor)
    data, own, preload, work = link.recv()
    for name in OURS:
        importlib.import_module(name)
    if preload is None:
        spawn.prepare(data)
        call = functools.partial(_prepare_and_run, own, work)
    else:
        call = _prepared(data | own, work)
        for name in preload:
            importlib.import_module(name)
    others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    # The parent's end, closed, is noticed by the children themselves, which are not to be waited for.
    with contextlib.suppress(EOFError, OSError):
        if others:
            link.send(", ".join(others))
        _fork(link, Starter("fork", call))
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


def _fork(link: Connection, starter: Starter) -> None:
    """Fork children until the parent is gone, which is an error: EOFError or OSError."""
    signals = OwnSignals([signal.SIGCHLD], link.close)
    signals.install()
    while True:
        asked = link in wait([link, signals.ear])
        signals.hear()
        if asked:
            serial, number = link.recv()
            with socket.socket(fileno=os.dup(link.fileno())) as through:
                _, (listener, line), _, _ = socket.recv_fds(through, 1, 2)
            with _socket(listener, 0) as listening, _socket(line, None) as telling:
                starter.start(serial, number, listening, telling)
        for news in starter.news():
            link.send(news)


def _socket(descriptor: int, timeout: float | None) -> socket.socket:
    """Return a socket that has `timeout` from the start, for other processes share the descriptor of a listener."""
    # PyPy makes the descriptor blocking for all of them when it makes a socket of it, and one that is about to accept a
    # connection that another one takes would hang.
    os.set_inheritable(descriptor, False)
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(timeout)
    try:
        return socket.socket(fileno=descriptor)
    finally:
        socket.setdefaulttimeout(before)
