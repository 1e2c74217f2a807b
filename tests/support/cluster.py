"""What tests have a Dask cluster run. The workers import it, so it needs nothing of pytest."""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from distributed import Event, get_worker

TIMEOUT = 30.0


def add(left: int, right: int = 1) -> int:
    return left + right


def given(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


def wait_at(name: str, data: bytes = b"") -> str:
    """Say that the call has begun, and wait until it may go on; not at all without a name."""
    if name:
        Event(f"{name}-begun").set()
        assert Event(f"{name}-open").wait(TIMEOUT)
    return name


def note(path: str, line: str = "run", data: bytes = b"") -> int:
    with Path(path).open("a") as file:
        file.write(f"{line}\n")
    return os.getpid()


def where() -> str:
    address: str = get_worker().address
    return address


class Strange(Exception):
    """An error that can be pickled, but not unpickled."""

    def __init__(self, left: int, right: int) -> None:
        super().__init__(f"{left} and {right}")


def fail(kind: type[BaseException], *args: Any) -> None:
    raise kind(*args)


def divide(by: int) -> float:
    return 10 / by


class Unruly(BaseException):
    """What does not let itself be shown, nor pickled."""

    def __repr__(self) -> str:
        raise Unruly

    __str__ = __repr__

    def __reduce__(self) -> Any:
        raise Unruly


def be_unruly(number: int) -> Any:
    """Raise an error that cannot be pickled, or not unpickled; or return one, or what is given."""
    if number == 1:
        raise Unruly
    if number == 3:
        raise Fickle("only there")
    return Unruly() if number == 2 else number


def die(path: str) -> None:
    """Kill the process that makes the call."""
    note(path)
    os.kill(os.getpid(), signal.SIGKILL)


class Fickle(Exception):
    """An error that cannot be pickled for another reason each."""

    def __init__(self, way: str) -> None:
        super().__init__(way)
        self.way = way

    def __reduce__(self) -> Any:
        if self.way == "comes back as something else":
            return str, ("no error",)
        return only_there, ()

    def __str__(self) -> str:
        if self.way == "has no text":
            raise ValueError("no text")
        return self.way


def only_there() -> Any:
    """Return something where calls are made, and raise an error in the thread that waits for them."""
    if threading.current_thread().name.startswith("ebbpool-"):
        raise ValueError("not here")
    return Fickle("only there")


class OnlyThere:
    def __reduce__(self) -> Any:
        return only_there, ()


def size_of(data: Any, *others: Any) -> int:
    return len(data) + sum(len(other) for other in others)


def append(data: bytearray) -> int:
    """Change an argument; return its length."""
    data.append(1)
    return len(data)


class Proxy:
    """A way to a TCP server that can be cut, on the way out at the latest, and mended.

    What mends it must reserve its port meanwhile. While nothing `flows`, it holds what comes.
    """

    def __init__(self, target: str, port: int = 0) -> None:
        host, _, where = target.removeprefix("tcp://").rpartition(":")
        self._target = (host, int(where))
        self._mutex = threading.Lock()
        self._open: set[socket.socket] = set()
        self._port = port
        self.flows = threading.Event()
        self.mend()

    def mend(self) -> None:
        """Take connections, at the same port as before."""
        self.flows.set()
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._port = self._listener.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self._port}"
        threading.Thread(target=self._accept, args=(self._listener,), name="proxy", daemon=True).start()

    def cut(self) -> None:
        """End all connections, and take no more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._mutex:
            ended, self._open = self._open, set()
        for end in ended:
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self.flows.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self.cut()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                here, _ = listener.accept()
                there = socket.create_connection(self._target)
            except OSError:
                return
            with self._mutex:
                self._open.update((here, there))
            for pair in ((here, there), (there, here)):
                threading.Thread(target=self._pass_on, args=pair, name="proxy", daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self.flows.wait()
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


def peak() -> int:
    """Return the most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
