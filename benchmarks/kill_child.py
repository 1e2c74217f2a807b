"""A process of the server is killed every second, under load: is anybody refused, what is lost, for how long?"""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from pathlib import Path

from benchmarks.engine.model import Column, Params, Question, Samples, Target, always, percentile
from benchmarks.load.serving import Beside, Server, serving, wait_for
from benchmarks.load.steady import ask_steadily
from benchmarks.peers.peer import Peer
from benchmarks.servers.web import WAIT_SECONDS, WAITING, write_page

_PROCESSES = 2
_SERVERS = {
    "web-prefork": "web prefork",
    "web-prefork-reuse-port": "web prefork-reuse-port",
    "web-gunicorn": "web gunicorn",
}
_OURS = "web-prefork web-prefork-reuse-port"
_START_SECONDS = 30.0
_LAST_SECONDS = 10.0
_DEATH_SECONDS = 0.25
_READY = re.compile(r"^([0-9.]+) (?=.*\bevent=child_ready\b).*\bpid=([0-9]+)", re.MULTILINE)


def ready_children(log: Path) -> list[tuple[float, int]]:
    """When each child was ready, by the time of day in seconds, and its process, in the order of the log."""
    if not log.exists():
        return []
    return [(float(moment), int(pid)) for moment, pid in _READY.findall(log.read_text())]


class Killer(Beside):
    """Kills the child that has served longest, again and again, from a thread of its own; a context manager.

    Attributes:
        kills: when, by the time of day in seconds.
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
        alive = [pid for _, pid in ready_children(self._log) if pid not in self._killed and pid in family]
        if alive:
            self.kills.append(time.time())
            os.kill(alive[0], signal.SIGKILL)
            self._killed.add(alive[0])


def measure(peer: Peer, params: Params) -> Samples:
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "log"
        write_page(Path(name))
        asked = ("--directory", name, "--log", str(log), "--processes", str(params["processes"]))
        with serving(_SERVERS[peer.base], *asked) as server:
            wait_for(lambda: len(ready_children(log)) == params["processes"], _START_SECONDS, "every child is ready")
            seconds = params["period"] * params["kills"]
            with Killer(server, log, params["period"], params["kills"]) as killer:
                tally = ask_steadily(
                    server.port, WAITING, fresh=params["fresh"], kept=params["kept"], kept_rate=params["kept rate"],
                    seconds=seconds, patience=_LAST_SECONDS,
                )  # fmt: skip
            expected = params["processes"] + len(killer.kills)
            wait_for(lambda: len(ready_children(log)) >= expected, _LAST_SECONDS, "every dead child is replaced")
            ready = [moment for moment, _ in ready_children(log)][params["processes"] :]
    if not tally.latencies:
        raise RuntimeError(f"not one right answer: {tally}")
    elsewhere = [at for at in tally.lost if not any(0 <= at - kill < _DEATH_SECONDS for kill in killer.kills)]
    return {
        "kills": [len(killer.kills)],
        "refused": [tally.refused],
        "lost": [len(tally.lost)],
        "elsewhere": [len(elsewhere)],
        "errors": [tally.wrong + tally.unanswered],
        "replaced": [(then - kill) * 1e3 for kill, then in zip(killer.kills, ready, strict=False)],
        "right": [len(tally.latencies)],
        "p99": [percentile(tally.latencies, 0.99) * 1e3],
        "slowest": [max(tally.latencies) * 1e3],
    }


QUESTION = Question(
    title="kill -9 of a child every second, under load",
    method=f"a handler that waits {WAIT_SECONDS * 1e3:g} ms; another process asks 100 times a second from new "
    "connections and 200 times from 20 kept ones, whatever becomes of the answers; who is killed is the child that has "
    "served longest; lost: a connection ended with a request under way; at other times: not within "
    f"{_DEATH_SECONDS:g} s after a kill; replaced: from the kill until the next child says that it serves",
    columns=(
        Column("kills", "kills", 0, ratio=False),
        Column("refused", "refused", 0, ratio=False, worst=True),
        Column("lost", "lost", 0, ratio=False),
        Column("elsewhere", "lost at other times", 0, ratio=False, worst=True),
        Column("errors", "wrong or unanswered", 0, ratio=False, worst=True),
        Column("replaced", "replaced, ms, worst", 0, worst=True),
        Column("right", "answered right", 0, ratio=False, more=True),
        Column("p99", "p99, ms", 1),
        Column("slowest", "slowest, ms", 0, worst=True),
    ),
    peers=tuple(_SERVERS),
    variants=always({"processes": _PROCESSES}),
    sizes=lambda quick: {
        "period": 1.0,
        "kills": 3 if quick else 10,
        "fresh": 100.0,
        "kept": 20,
        "kept rate": 10.0,
    },
    measure=measure,
    targets=(
        Target("no refused connection", _OURS, "refused", 0),
        Target("replaced within 25 ms", _OURS, "replaced", 25),
        Target("nothing lost but in the dead child", _OURS, "elsewhere", 0),
        Target("every other request answered right", _OURS, "errors", 0),
    ),
    rounds_factor=1 / 3,
    limits="how soon the parent sees that a child is gone, and what a fork of a process with the application takes",
)
