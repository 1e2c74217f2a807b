"""Counts the instructions of some loads, and holds them against those that are kept: `python -m benchmarks.guard`.

Threads take turns in a load, and nothing depends on the time: a worker starts on what was queued when all of it is, and
the thread that waits for it sleeps until it is through. So the same load takes nearly the same instructions each time.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import http.server
import json
import os
import platform
import re
import shutil
import socket
import socketserver
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import ebbpool
from benchmarks import ROOT
from benchmarks.engine.model import nothing
from ebbpool._core.accel import LoopCall
from ebbpool._maps import map_run
from ebbpool._pool import crew
from ebbpool.socketserver import AdaptivePoolHTTPServer, AdaptivePoolTCPServer

_FAR_SECONDS = 3_600.0
_REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
_BODY = b"answer"

Work = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Load:
    """What is counted, and how often: once, and once with twice that, as the difference has only what depends on it.

    The script yields what does it so often. It may take more by a share of `tolerance`, somewhat more than it differs
    from run to run on a busy machine.
    """

    label: str
    count: int
    tolerance: float
    script: Callable[[], AbstractContextManager[Work]]


LOADS: dict[str, Load] = {}


def load(name: str, label: str, count: int, tolerance: float = 0.03) -> Callable[[Callable[[], Iterator[Work]]], None]:
    """Take what is decorated for the script of a load."""

    def take(script: Callable[[], Iterator[Work]]) -> None:
        LOADS[name] = Load(label, count, tolerance, contextmanager(script))

    return take


def itself(item: int) -> int:
    """The trivial item."""
    return item


class _Held:
    """Holds up the one worker of a pool, so that what is queued meanwhile runs in one go."""

    def __init__(self, pool: ebbpool.AdaptiveExecutor) -> None:
        self._pool, self._begun, self._gate, self._over = pool, threading.Lock(), threading.Lock(), threading.Lock()
        for lock in (self._begun, self._gate, self._over):
            lock.acquire()
        pool.submit(self._hold)
        self._begun.acquire()

    def _hold(self) -> None:
        self._begun.release()
        self._gate.acquire()

    def run(self) -> None:
        """Let the worker go on, and return when it has run what is queued."""
        self._pool.submit(self._over.release)
        self._gate.release()
        self._over.acquire()


@load("submit", "submit, run, collect", 2_000)
def submit() -> Iterator[Work]:
    with ebbpool.AdaptiveExecutor(1) as pool:

        def burst(count: int) -> None:
            held = _Held(pool)
            futures = [pool.submit(nothing) for _ in range(count)]
            held.run()
            for future in futures:
                future.result()

        yield burst


@load("round_trip", "submit one, wait for it", 1_000, 0.05)
def round_trip() -> Iterator[Work]:
    with ebbpool.AdaptiveExecutor(1) as pool:

        def trips(count: int) -> None:
            for _ in range(count):
                pool.submit(nothing).result()

        yield trips


@load("later", "submit_later", 3_000)
def later() -> Iterator[Work]:
    pending = []
    with ebbpool.AdaptiveExecutor(1) as pool:

        def delayed(count: int) -> None:
            for _ in range(count):
                pending.append(pool.submit_later(_FAR_SECONDS, nothing))

        yield delayed


@load("map", "map, an item", 20_000)
def mapped() -> Iterator[Work]:
    # Claims are sized by the clock, and valgrind is slow: by this clock no item takes any time.
    clock = map_run.perf_counter
    map_run.perf_counter = lambda: 0.0
    try:
        with ebbpool.AdaptiveExecutor(1) as pool:

            def all_mapped(count: int) -> None:
                held = _Held(pool)
                results = pool.map(itself, range(count))
                held.run()
                for _ in results:
                    pass

            yield all_mapped
    finally:
        map_run.perf_counter = clock


@load("run", "await pool.run(...)", 1_000)
def run() -> Iterator[Work]:
    with ebbpool.AdaptiveExecutor(1) as pool, asyncio.Runner() as runner:

        async def awaits(count: int) -> None:
            for _ in range(count):
                await pool.run(nothing)

        yield lambda count: runner.run(awaits(count))


@load("gather", "the same, gathered", 2_000)
def gather() -> Iterator[Work]:
    with ebbpool.AdaptiveExecutor(1) as pool, asyncio.Runner() as runner:

        async def gathered(count: int) -> None:
            held = _Held(pool)
            calls = [pool.run(nothing) for _ in range(count)]
            held.run()
            await asyncio.gather(*calls)

        yield lambda count: runner.run(gathered(count))


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(_BODY)))
        self.end_headers()
        self.wfile.write(_BODY)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (its name there)
        pass


@load("http", "one HTTP request", 200)
def http_request() -> Iterator[Work]:
    with AdaptivePoolHTTPServer(("127.0.0.1", 0), _Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        host, port = server.server_address[:2]
        with socket.create_connection((str(host), port)) as client:

            def ask(count: int) -> None:
                for _ in range(count):
                    client.sendall(_REQUEST)
                    answer = b""
                    while not answer.endswith(_BODY):
                        answer += client.recv(65_536)

            yield ask
        server.shutdown()
        serving.join()


class _Silent(socketserver.BaseRequestHandler):
    """Closes the connection at once."""


@load("tcp", "one accepted TCP connection", 100)
def tcp_connection() -> Iterator[Work]:
    with ebbpool.AdaptiveExecutor(1) as pool:

        class Server(AdaptivePoolTCPServer):
            executor = pool

        with Server(("127.0.0.1", 0), _Silent) as server:

            def hand_over(count: int) -> None:
                pairs = [socket.socketpair() for _ in range(count)]
                held = _Held(pool)
                for accepted, _ in pairs:
                    server.process_request(accepted, "")
                held.run()
                for _, client in pairs:
                    client.close()

            yield hand_over


def counted(names: Collection[str]) -> None:
    """Run some loads, with a call of `os.getsid` between their pieces: in the process that is counted."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    gc.disable()
    # The timekeeper would look at the pool more often the slower the machine is.
    crew.HORIZON = _FAR_SECONDS
    # Nor do results come in slices of time, or workers nap: how many, and how often, is the machine's.
    vars(sys.modules[LoopCall.__module__]).update(thread_time=float, sleep=float, KEPT_WAITING=_FAR_SECONDS)
    for name in names:
        with LOADS[name].script() as work:
            work(100)
            for times in (1, 2):
                os.getsid(0)
                work(times * LOADS[name].count)
            os.getsid(0)


KEPT = Path(__file__).with_suffix(".json")
_CORES = ("compiled", "plain")
_AGAIN = 2
"""How often a load that takes too many instructions is counted again; the least counts."""
_SECONDS = 600.0
_COUNTED = "--counted"

Figures = dict[str, float]
"""Instructions for each load."""


def available() -> bool:
    """Return whether instructions can be counted here."""
    return shutil.which("valgrind") is not None


def instructions(core: str, loads: Collection[str]) -> Figures:
    """Count with valgrind the instructions of each load on one core, in user space."""
    environment = os.environ | {"PYTHONHASHSEED": "0", "EBBPOOL_PURE": "1" if core == "plain" else ""}
    with tempfile.TemporaryDirectory() as folder:
        parts = Path(folder) / "parts"
        # It writes down what was counted, and begins anew, before each call of `getsid`.
        marks = ("--dump-before=getsid", f"--callgrind-out-file={parts}")
        script = (sys.executable, "-m", "benchmarks.guard", _COUNTED, *loads)
        command = ["valgrind", "--quiet", "--tool=callgrind", *marks, *script]
        found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_SECONDS)
        if found.returncode:
            raise RuntimeError(f"{command} ended with status {found.returncode}:\n{found.stdout}{found.stderr}")
        return differences([total(parts.with_suffix(f".{at + 1}").read_text()) for at in range(3 * len(loads))], loads)


def total(part: str) -> int:
    """Return the number of instructions in what callgrind has written."""
    found = re.search(r"^totals: *([0-9]+)", part, re.MULTILINE)
    if found is None:
        raise ValueError("callgrind has written no total")
    return int(found[1])


def differences(totals: Sequence[int], loads: Collection[str]) -> Figures:
    """Return what one of each load takes; of each were counted what comes before, the load, and the load twice over."""
    pieces = zip(loads, totals[1::3], totals[2::3], strict=True)
    return {name: (twice - once) / LOADS[name].count for name, once, twice in pieces}


def interpreter() -> str:
    """Return what decides how many instructions the same Python code takes: the interpreter and how it was built."""
    version = platform.python_version() + "t" * bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    parts = (sys.implementation.name, version, platform.machine(), *platform.libc_ver(), platform.python_compiler())
    return " ".join(filter(None, parts))


def kept() -> dict[str, Figures]:
    """Return the kept figures, for each interpreter and core."""
    found: dict[str, Figures] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    return found


def keep(name: str, figures: Figures) -> None:
    """Write the figures of an interpreter and core in place of those that were kept."""
    found = kept() | {name: {load: round(count) for load, count in figures.items()}}
    lines = [f"{json.dumps(each)}: {json.dumps(found[each], sort_keys=True)}" for each in sorted(found)]
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def exceeding(figures: Figures, before: Figures) -> list[str]:
    """Return the loads that take more instructions than were kept, beyond the tolerance."""
    return [name for name, count in figures.items() if count > before.get(name, count) * (1 + LOADS[name].tolerance)]


def guard(core: str, update: bool) -> int:
    """Count all loads on one core, and say what came of it; return how many take too many instructions."""
    name = f"{core} core, {interpreter()}"
    before, figures = kept().get(name, {}), instructions(core, LOADS)
    for _ in range(0 if update else _AGAIN):
        # Where threads have to wait for each other they take more instructions, and never fewer.
        if over := exceeding(figures, before):
            figures |= {each: min(figures[each], count) for each, count in instructions(core, over).items()}
    print(name)
    over = [] if update else exceeding(figures, before)
    for load, count in figures.items():
        was = f", {count / before[load] - 1:+.1%} of {before[load]:,.0f}" if load in before else ""
        print(f"  {LOADS[load].label}: {count:,.0f} instructions{was}")
        if load in over:
            print(f"  TOO MANY: {count - before[load]:,.0f} more; {LOADS[load].tolerance:.0%} is the most it may be")
    if update:
        keep(name, figures)
        print(f"  kept in {KEPT.name}")
    elif not before:
        print("  no figures are kept for this interpreter: nothing to compare with (--update keeps these)")
    return len(over)


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit status: 1 if a load takes more instructions than it did, beyond the tolerance."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description="instructions a task")
    parser.add_argument("--update", action="store_true", help="keep the new figures")
    parser.add_argument(_COUNTED, nargs="+", choices=LOADS, metavar="LOAD", help="only run these: what valgrind counts")
    asked = parser.parse_args(argv)
    if asked.counted:
        counted(asked.counted)
        return 0
    cores = _CORES if ebbpool.COMPILED else _CORES[1:]
    if not available():
        print("guard: no valgrind here, so no instruction is counted")
        return 0
    excess = sum(guard(core, asked.update) for core in cores)
    if excess:
        print(
            f"guard: {excess} counts exceed those in {KEPT.name}. Where that is meant, or where the compiler or Cython "
            "is another, --update keeps the new ones",
            file=sys.stderr,
        )
    return 1 if excess else 0


if __name__ == "__main__":
    sys.exit(main())
