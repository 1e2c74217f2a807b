"""``python -m ebbpool serve`` in a process of its own, and how to talk to it byte by byte."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from support.common import Background, environment, eventually
from support.prefork import nobody_is_left

PATIENCE = 40.0
"""Seconds that an interpreter may take to start, or to end, on a busy machine."""


class Served:
    """A running server: where it listens, what it wrote."""

    def __init__(self, process: subprocess.Popen[str], log: Path, line: str) -> None:
        self.process = process
        self._log = log
        self.line = line
        self.port = int(line.split(" port ")[1].split()[0])
        self.url = line[line.index("(") + 1 : line.index(")")]

    @property
    def log(self) -> str:
        """What it has written to standard error."""
        return self._log.read_text()

    def connect(self, host: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection((host, self.port), timeout=PATIENCE)

    def get(self, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
        return get(self.port, path, method)

    def refuses(self) -> bool:
        """Tell whether nobody listens any more."""
        try:
            self.connect().close()
        except ConnectionRefusedError:
            return True
        except ConnectionResetError:
            pass
        return False

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; return the exit status and what came on standard output after the first line."""
        self.process.send_signal(number)
        return self.end()

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit status and what came on standard output after the first line."""
        rest, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, rest


def get(port: int, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    """Make one request on a connection of its own; return status, headers and body."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as client:
        client.request(method, path)
        with client.getresponse() as response:
            return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()


def read_until(connection: socket.socket, end: bytes) -> bytes:
    """Return what comes until `end`, which has to come."""
    received = b""
    while not received.endswith(end):
        piece = connection.recv(65536)
        assert piece, received
        received += piece
    return received


def fill(writer: int) -> None:
    """Write into a pipe until it takes no more."""
    os.set_blocking(writer, False)
    for size in (4096, 1):
        with suppress(BlockingIOError):
            while True:
                os.write(writer, b"." * size)
    os.set_blocking(writer, True)


@contextmanager
def started(command: list[str], directory: Path, log: Path) -> Iterator[Served]:
    """Run a server in `directory` until the block is left; kill it, and all that it started, if it has not ended."""
    with log.open("w") as errors:
        process: subprocess.Popen[str] = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment(),
            cwd=directory,
            start_new_session=True,
        )
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    # Where both streams are one, a line of the log may come before it.
    reader = Background(lambda: next((line for line in lines if " port " in line), ""))
    try:
        assert reader.over.wait(PATIENCE), "the server did not say where it listens"
        line = reader.join()
        assert line, f"the server ended at once: {log.read_text()}"
        yield Served(process, log, line)
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)
        reader.over.wait(PATIENCE)
        process.stdout.close()


@contextmanager
def serving(directory: Path, *arguments: str) -> Iterator[Served]:
    """Serve `directory` at a free port of 127.0.0.1; at the end of the block a SIGTERM has to end it with status 0."""
    bind = [] if "-b" in arguments else ["-b", "127.0.0.1"]
    command = [sys.executable, "-m", "ebbpool", "serve", "0", *bind, *arguments]
    # Beside the directory and not in it, where the listing would show it.
    log = directory.with_name(f"{directory.name}.log")
    with started(command, directory, log) as served:
        yield served
        if served.process.poll() is None:
            assert served.stop() == (0, ""), served.log
        eventually(lambda: nobody_is_left(served.process.pid), "no process is left")
        assert "Traceback" not in served.log, served.log
        assert "Warning" not in served.log, served.log
