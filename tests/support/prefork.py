"""What the tests of `ebbpool.prefork` share: a watchdog in a world without processes, and servers in real ones."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

import pytest

from ebbpool._prefork import bind as binding  # noqa: F401  (for tests of what is inside)
from ebbpool._prefork import watchdog
from support.common import TIMEOUT, environment, eventually

if os.name == "posix":
    from ebbpool._prefork import child as child
    from ebbpool._prefork import template as template

LIMIT = 30.0
"""Seconds: the time limits of a watchdog in a world without processes."""


class Report(NamedTuple):
    event: str
    level: int
    fields: dict[str, object]


@dataclass
class World:
    """A watchdog, a clock that a test holds in its hand, and the children as it was told about them."""

    processes: int = 2
    now: float = 1000.0
    running: dict[int, int] = field(default_factory=dict)
    """The number of each child, by its serial."""
    asked: list[int] = field(default_factory=list)
    killed: list[int] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dog = watchdog.Watchdog(self, self.processes, watchdog.Limits(LIMIT, LIMIT, LIMIT))

    def start(self, life: watchdog.Life) -> None:
        assert life.serial not in self.running
        self.running[life.serial] = life.number

    def stop(self, life: watchdog.Life) -> None:
        assert life.serial in self.running and life.serial not in self.asked
        self.asked.append(life.serial)

    def kill(self, life: watchdog.Life) -> None:
        assert life.serial in self.running and life.serial not in self.killed
        self.killed.append(life.serial)

    def report(self, level: int, event: str, life: watchdog.Life | None, **fields: object) -> None:
        self.reports.append(Report(event, level, ({} if life is None else {"number": life.number}) | fields))

    def tell(self, event: str, serial: int | None = None, *about: object) -> World:
        """Tell the watchdog of an event, and have it decide."""
        whose = [] if serial is None else [self.dog.lives[serial]]
        timeless = event in ("reload", "stop", "abort")
        getattr(self.dog, event)(*whose, *about, *([] if timeless else [self.now]))
        if event != "tick":
            self.dog.tick(self.now)
        return self

    def begin(self) -> World:
        return self.tell("tick")

    def ready(self, *serials: int) -> World:
        for serial in serials:
            self.tell("ready", serial)
        return self

    def gone(self, serial: int, exitcode: int = -9) -> World:
        del self.running[serial]
        return self.tell("gone", serial, exitcode)

    def later(self, seconds: float, beating: Iterable[int] = ()) -> World:
        """Let time pass, with every tick that is due meanwhile; the children `beating` give signs of life."""
        end = self.now + seconds
        while self.now < end or seconds == 0:
            until = min(end, self.now + LIMIT / 4)
            while (due := self.dog.due()) <= until:
                assert due > self.now, "a tick was due that changed nothing"
                self.now = due
                self.tell("tick")
            self.now = until
            for serial in beating:
                self.tell("beat", serial)
            if self.now >= end:
                break
        return self

    def serving(self) -> World:
        """Begin, get everybody ready, and let them settle."""
        self.begin()
        return self.ready(*self.running).later(1.0)

    def of(self, number: int) -> list[int]:
        return [serial for serial, its in self.running.items() if its == number]

    def live(self) -> list[int]:
        return sorted(life.number for life in self.dog.lives.values() if life.live)

    def starting(self) -> list[int]:
        return [life.serial for life in self.dog.lives.values() if life.phase is watchdog.Phase.STARTING]

    def events(self) -> list[str]:
        return [report.event for report in self.reports]

    def last(self, event: str) -> Report:
        return next(report for report in reversed(self.reports) if report.event == event)


HEAD = '''
import functools
import logging
import os
import pathlib
import signal
import socketserver
import sys
import threading
import time

from ebbpool import prefork
from ebbpool._prefork import child as _child, parent as _parent


def tune(module=_child, **constants):
    """Set constants that no user sets, in each process that imports this."""
    vars(module).update(constants)


def say(text):
    # In one piece: other processes write to the same stream.
    os.write(2, text.encode() + b"\\n")


def tell(event, **values):
    say(" ".join([f"event={event}", *(f"{key}={value}" for key, value in values.items())]))


def state():
    """What becomes of signals here."""
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    descriptor = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(descriptor)
    return handlers, descriptor, signal.pthread_sigmask(signal.SIG_BLOCK, [])


class Handler(socketserver.StreamRequestHandler):
    """Tells which process it is; `hold` is a request that waits for another line."""

    def handle(self):
        if self.rfile.readline() == b"hold\\n":
            self.wfile.write(b"begun\\n")
            self.rfile.readline()
        self.wfile.write(b"%d\\n" % os.getpid())


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """The standard library's, on a socket that is there already."""

    def __init__(self, listener):
        socketserver.BaseServer.__init__(self, listener.getsockname(), Handler)
        self.socket = listener


def serve(child):
    child.serve(Server(child.listener))


def serve_and_tell(child):
    child.on_stop(functools.partial(say, "event=asked"))
    serve(child)


def go(serve=serve, bind=("127.0.0.1", 0), processes=2, **settings):
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sys.exit(prefork.run(serve, bind=bind, processes=processes, **settings))
'''


class Site:
    """A program that calls `prefork.run`, in a session of its own; what it logs can be waited for."""

    def __init__(self, folder: Path, settings: str | None, script: str) -> None:
        program = folder / "program.py"
        call = "" if settings is None else f'if __name__ == "__main__":\n    go({settings})\n'
        program.write_text(HEAD + textwrap.dedent(script) + call, encoding="utf-8")
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, str(program)],
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd=folder,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, name="site-reader", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.lines.append(line.rstrip("\n"))

    def events(self, event: str, **wanted: object) -> list[dict[str, str]]:
        """Everything logged so far about `event`."""
        found = []
        for line in list(self.lines):
            fields = dict(re.findall(r"(\w+)=('[^']*'|\S+)", line)) if line.startswith("event=") else {}
            if fields.get("event") == event and all(fields.get(key) == str(value) for key, value in wanted.items()):
                found.append(fields)
        return found

    def await_event(self, event: str, count: int = 1, **wanted: object) -> dict[str, str]:
        """Wait until `event` was logged `count` times; return the fields of that time."""
        self._await(lambda: len(self.events(event, **wanted)) >= count, f"event={event} {wanted} {count} times")
        return self.events(event, **wanted)[count - 1]

    def await_text(self, text: str) -> None:
        self._await(lambda: any(text in line for line in self.lines), repr(text))

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 2 * TIMEOUT
        over = False
        while not condition():
            assert not over, self._story(f"no {what}")
            over = not self._reader.is_alive() or time.monotonic() > deadline
            self._reader.join(0.001)

    def _story(self, what: str) -> str:
        return "\n".join([what, *self.lines])

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.await_event("listening")["address"].rpartition(":")
        return host, int(port)

    def child(self, number: int, count: int = 1) -> int:
        """The process id of the child that is the `count`-th with this number to get ready."""
        return int(self.await_event("child_ready", count, number=number)["pid"])

    def children(self) -> list[int]:
        return [self.child(0), self.child(1)]

    def signal(self, number: signal.Signals, to_all: bool = False) -> None:
        """Signal the program, or the whole process group, as a terminal does."""
        (os.killpg if to_all else os.kill)(self.pid, number)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, TIMEOUT)

    def begin(self) -> socket.socket:
        """Send a request that ends with `answer_on`, and wait until it is being handled."""
        connection = self.connect()
        connection.sendall(b"hold\n")
        assert connection.recv(6) == b"begun\n"
        return connection

    def ask(self) -> int:
        """Ask the server which of its processes answers."""
        with self.connect() as connection:
            return answer_on(connection)

    def status(self) -> int:
        """Wait for the end; return the exit status."""
        try:
            return self._process.wait(3 * TIMEOUT)
        except subprocess.TimeoutExpired:
            raise AssertionError(self._story("the program did not end")) from None

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.status()

    def clean_up(self) -> None:
        """Kill whatever there is of the process group; it is an error if that is needed after an orderly end."""
        orderly = self._process.poll() is not None
        try:
            if orderly:
                eventually(lambda: nobody_is_left(self.pid), self._story("processes were left behind"))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait(TIMEOUT)
            self._reader.join(TIMEOUT)
            assert self._process.stderr is not None
            self._process.stderr.close()


@contextmanager
def site(folder: Path, settings: str | None = "", script: str = "") -> Iterator[Site]:
    """Run `HEAD`, `script` and a call of `go` with `settings` as a program; afterwards nothing of it is left."""
    running = Site(folder, settings, script)
    try:
        yield running
    finally:
        running.clean_up()


def processes() -> Iterator[tuple[int, int]]:
    """Yield each process that runs, and its group. One that has ended may keep its number for a while: not that."""
    listing = Path("/proc")
    if (listing / "self" / "stat").exists():
        for entry in listing.glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                # The name of the program, in parentheses, may hold anything.
                state, _, group = entry.read_text(errors="replace").rpartition(")")[2].split()[:3]
                if state not in "ZX":
                    yield int(entry.parent.name), int(group)
        return
    listed = subprocess.run(["ps", "-A", "-o", "pid=,pgid=,stat="], capture_output=True, text=True, check=True).stdout
    for line in listed.splitlines():
        pid, group, state = line.split()
        if not state.startswith("Z"):
            yield int(pid), int(group)


def is_gone(pid: int) -> bool:
    return not any(pid == other for other, _ in processes())


def nobody_is_left(group: int) -> bool:
    """Tell whether a whole process group is gone, multiprocessing's helpers included."""
    return not any(group == other for _, other in processes())


def answer_on(connection: socket.socket) -> int:
    connection.sendall(b"go on\n")
    with connection.makefile("rb") as lines:
        line = lines.readline()
    if not line:
        raise ConnectionResetError("the connection ended without an answer")
    return int(line)


def skip_without_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("the machine has no IPv6")


class Load:
    """Clients that connect and ask again and again, until the block ends."""

    def __init__(self, running: Site, clients: int = 4) -> None:
        self._ask = running.ask
        self._over = threading.Event()
        self._calls = 0
        self._answers: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self.errors: list[OSError] = []
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]

    def _run(self) -> None:
        while not self._over.is_set():
            call = self._calls
            try:
                self._answers.put((call, self._ask()))
            except OSError as error:
                self.errors.append(error)

    def await_answers(self, count: int = 20) -> set[int]:
        """Wait for so many answers to what is asked from now on; return who gave them."""
        self._calls += 1
        found = []
        while len(found) < count:
            call, pid = self._answers.get(timeout=TIMEOUT)
            if call == self._calls:
                found.append(pid)
        return set(found)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(2 * TIMEOUT)
