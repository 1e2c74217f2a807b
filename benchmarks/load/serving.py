"""A server in a process of its own that dies with its parent, and what it costs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks import ROOT

_PROC = Path("/proc")
_START_SECONDS = 30.0
_GROUPS = hasattr(os, "killpg")


def die_with_parent() -> None:
    """Ends this process, and on POSIX its group, when stdin ends: however the parent ends, that pipe is closed.

    To be called by a server program, before it prints its port.
    """

    def watch() -> None:
        sys.stdin.buffer.read()
        if _GROUPS and os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(0)

    threading.Thread(target=watch, name="die-with-parent", daemon=True).start()


def announce(port: int) -> None:
    """Tells whoever started this server program where it listens."""
    print(port, flush=True)


def serve_forever(server: Any) -> None:
    """Announce a server of `socketserver`'s kind, or of gevent's, and serve."""
    announce(server.server_port if hasattr(server, "server_port") else server.server_address[1])
    server.serve_forever()


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on; none if it is gone."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


@dataclass(frozen=True, slots=True)
class Server:
    """A server process that listens. Where there is no /proc, what it costs is 0."""

    port: int
    pid: int

    def family(self) -> list[int]:
        """The process and whatever it has started that lives."""
        if not _PROC.exists():
            return [self.pid]
        pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
        return [pid for pid in pids if pid == self.pid or _stat(pid)[2:3] == [str(self.pid)]]

    def cpu_seconds(self, *, family: bool = False) -> float:
        """What it has needed of a processor so far, in steps of a clock tick.

        With `family` its children, and theirs, are counted too; those that are gone once their parent collected them.
        """
        last, ticks = 15 if family else 13, 0
        for pid in self.family() if family else [self.pid]:
            ticks += sum(map(int, _stat(pid)[11:last]))
        return ticks / os.sysconf("SC_CLK_TCK") if ticks else 0.0

    def status(self, name: str) -> int:
        """Return the number after `name` in /proc/PID/status, kB or a count; 0 if there is none.

        "VmRSS" is memory that is resident, "VmHWM" the most that ever was, "VmSize" what is virtual; "Threads" that
        live include the main one, and the one that watches for the parent's end.
        """
        try:
            lines = (_PROC / str(self.pid) / "status").read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


@contextmanager
def serving(program: str, *args: str, ready: Callable[[int], object] | None = None) -> Iterator[Server]:
    """Run a server program in a fresh process; yield it, and end it and all of its group, whatever happens.

    Args:
        program: A module, of `benchmarks.servers` if it has no dot, and its arguments, as in a shell. It calls
            `die_with_parent`, listens on a free port of 127.0.0.1, calls `announce` with it, and serves for ever.
        args: Further arguments.
        ready: Called with the port first, for a server that listens before it answers.

    Raises:
        RuntimeError: It ended without printing a port; its last words are on stderr.
    """
    module, *arguments = program.split()
    command = [sys.executable, "-m", module if "." in module else f"benchmarks.servers.{module}", *arguments, *args]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=_GROUPS
    ) as child:
        try:
            assert child.stdout is not None
            line = child.stdout.readline()
            if not line:
                raise RuntimeError(f"the server ended with status {child.wait(_START_SECONDS)}")
            port = int(line)
            if ready is not None:
                ready(port)
            yield Server(port, child.pid)
        finally:
            if _GROUPS:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
            child.kill()


class Beside:
    """A thread beside what is measured, for as long as the block lasts; `_over` tells it to end."""

    def __init__(self, run: Callable[[], None], name: str) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=run, name=name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._thread.join()


class Watch(Beside):
    """Looks at a server again and again, from a thread of this process; a context manager.

    Attributes:
        threads: the most there were.
        memory: the most resident memory, in kB.
    """

    def __init__(self, server: Server, *, period: float = 0.05) -> None:
        super().__init__(self._look, "watch")
        self._server, self._period = server, period
        self.threads = self.memory = 0

    def _look(self) -> None:
        while True:
            self.threads = max(self.threads, self._server.status("Threads"))
            self.memory = max(self.memory, self._server.status("VmRSS"))
            if self._over.wait(self._period):
                return


def wait_for(condition: Callable[[], object], timeout: float, what: str) -> None:
    """Looks every millisecond until `condition` holds, for so many seconds at most."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {timeout:g} s: {what}")
        time.sleep(0.001)
