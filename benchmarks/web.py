"""Web servers of one process and of several: threads, a pool, gunicorn, prefork."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.engine.model import Column, Params, Question, Samples, percentile
from benchmarks.load.ab import ab
from benchmarks.load.http import Clients, answers, ask_steadily, served_columns
from benchmarks.load.serving import Beside, Server, serving, wait_for
from benchmarks.peers.peer import Peer
from benchmarks.servers.web import ASLEEP, ASLEEP_SECONDS, COMPUTING, PAGE, TRIVIAL, WAITING, WORD, computed, write_page


def _allow_files(count: int) -> None:
    """Let this process, and whatever it starts, have so many files open, if it may."""
    with suppress(ImportError):  # on Windows there is no such limit
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


_LIGHT = {"page": "static", "requests": 1000, "at a time": 100}
_HEAVY = {"page": "static", "requests": 10_000, "at a time": 1000}
_COMPUTING = {"page": "computing", "requests": 1000, "at a time": 100}


@Question(
    title="A web server under ab, one connection per request",
    columns=(
        Column("rate", "requests/s", 0, more=True),
        Column("errors", "failed", 0, ratio=False, worst=True, wrong=True),
        Column("p99", "p99, ms", 0),
        Column("cpu", "CPU, µs per request", 0),
        Column("client", "% of a CPU, ab", 0, ratio=False),
    ),
    peers="web-threading web-pool web-pool-pure web-prefork",
    variants=[_LIGHT, _HEAVY, _COMPUTING],
)
def web_server(peer: Peer, params: Params) -> Samples:
    """`ab` asks for a static page, and for one that takes computing: what do threads, a pool and processes serve?"""
    _allow_files(4096)
    target = {"static": PAGE, "computing": COMPUTING}[params["page"]]
    requests = params["requests"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_page(folder)
        expected = (folder / PAGE[1:]).read_bytes() if target == PAGE else computed()
        with serving(peer.program, "--directory", name) as found:
            # `ab` looks at lengths only: somebody has to read the page.
            answers(found.port, target, expected)
            before = found.cpu_seconds(family=True)
            done = ab(found.port, target, requests=requests, concurrency=params["at a time"])
            used = found.cpu_seconds(family=True) - before
            answers(found.port, target, expected)
    samples: Samples = {
        "rate": [done.rate],
        "errors": [done.errors(len(expected)) + requests - done.complete],
        "p99": [done.percentiles[99]],
        "client": [done.cpu_seconds / done.seconds * 100],
    }
    return samples | ({"cpu": [used / requests * 1e6]} if used else {})


_CLIENTS = 100
_HANDLERS = {"trivial": TRIVIAL, f"{ASLEEP_SECONDS * 1e3:g} ms": ASLEEP}


@Question(
    title=f"gunicorn: {_CLIENTS} keep-alive clients, one worker process",
    columns=served_columns(1),
    peers="gunicorn-gthread gunicorn-pool granian",
    variants=[{"handler": handler, "threads": threads} for handler in _HANDLERS for threads in (40, 100)],
    sizes={"warm_up": 1.0, "seconds": 3.0},
)
def gunicorn_threads(peer: Peer, params: Params) -> Samples:
    """Gunicorn with 40 and with 100 threads: what do they serve, started by need and fixed?"""
    target = _HANDLERS[params["handler"]]
    options = ("--processes", "1", "--threads", str(params["threads"]), "--directory", ".")
    with (
        serving(peer.program, *options, ready=lambda port: answers(port, target, WORD)) as found,
        Clients(found.port, _CLIENTS, target, WORD) as clients,
    ):
        return clients.load(params["warm_up"], params["seconds"], lambda: found.cpu_seconds(family=True)).served()


DEATH_SECONDS = 0.25
_LAST_SECONDS = 10.0
_READY = re.compile(r"^([0-9.]+) (?=.*\bevent=child_ready\b).*\bpid=([0-9]+)", re.MULTILINE)


def _ready_children(log: Path) -> list[tuple[float, int]]:
    """Return when each child was ready, by the time of day in seconds, and its process, in the order of the log."""
    return [(float(at), int(pid)) for at, pid in _READY.findall(log.read_text())] if log.exists() else []


class _Killer(Beside):
    """Kills the child that has served longest, again and again, from a thread of its own; a context manager.

    Attributes:
        kills: When, by the time of day in seconds.
    """

    def __init__(self, server: Server, log: Path, period: float, count: int) -> None:
        super().__init__(self._run, "killer")
        self._server, self._log, self._period, self._count = server, log, period, count
        self._killed: set[int] = set()
        self.kills: list[float] = []

    def _run(self) -> None:
        start = time.monotonic()
        for number in range(self._count):
            if self._over.wait(max(0.0, start + (number + 0.5) * self._period - time.monotonic())):
                return
            self._kill()

    def _kill(self) -> None:
        family = set(self._server.family())
        alive = [pid for _, pid in _ready_children(self._log) if pid not in self._killed and pid in family]
        if alive:
            self.kills.append(time.time())
            os.kill(alive[0], signal.SIGKILL)
            self._killed.add(alive[0])


@Question(
    title="kill -9 of a child every second, under load",
    columns=(
        Column("refused", "refused", 0, ratio=False, worst=True, wrong=True),
        Column("lost", "lost", 0, ratio=False),
        Column("elsewhere", "lost at other times", 0, ratio=False, worst=True, wrong=True),
        Column("errors", "wrong or unanswered", 0, ratio=False, worst=True, wrong=True),
        Column("replaced", "until replaced at worst, ms", 0, worst=True),
        Column("p99", "p99, ms", 1),
        Column("slowest", "slowest, ms", 0, worst=True),
    ),
    peers="web-prefork web-gunicorn",
    variants=({"processes": 2},),
    sizes={"period": 1.0, "kills": 10, "fresh": 100.0, "kept": 20, "kept rate": 10.0},
    rounds_factor=1 / 3,
)
def kill_child(peer: Peer, params: Params) -> Samples:
    """A process of the server is killed every second, under load: is anybody refused, what is lost, for how long?"""
    processes = params["processes"]
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "log"
        write_page(Path(name))
        with serving(peer.program, "--directory", name, "--log", str(log), "--processes", str(processes)) as server:
            wait_for(lambda: len(_ready_children(log)) == processes, 30.0, "every child is ready")
            with _Killer(server, log, params["period"], params["kills"]) as killer:
                tally = ask_steadily(
                    server.port,
                    WAITING,
                    fresh=params["fresh"],
                    kept=params["kept"],
                    kept_rate=params["kept rate"],
                    seconds=params["period"] * params["kills"],
                    patience=_LAST_SECONDS,
                )
            expected = processes + len(killer.kills)
            wait_for(lambda: len(_ready_children(log)) >= expected, _LAST_SECONDS, "every dead child is replaced")
            ready = [moment for moment, _ in _ready_children(log)][processes:]
    if not tally.latencies:
        raise RuntimeError(f"not one right answer: {tally}")
    elsewhere = [at for at in tally.lost if not any(0 <= at - kill < DEATH_SECONDS for kill in killer.kills)]
    return {
        "refused": [tally.refused],
        "lost": [len(tally.lost)],
        "elsewhere": [len(elsewhere)],
        "errors": [tally.wrong + tally.unanswered],
        "replaced": [(then - kill) * 1e3 for kill, then in zip(killer.kills, ready, strict=False)],
        "p99": [percentile(tally.latencies, 0.99) * 1e3],
        "slowest": [max(tally.latencies) * 1e3],
    }
