"""The load, decided beforehand from a seed, and the clients that ask: who asks for what, when, and what came of it."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.load.http import BadResponse, Connection, request

_PAUSE = 1.3
"""The least time between two requests of a client (s): more than the slowest takes, so that it waits for the server."""
TOO_LATE = 1.0
"""Seconds after which a health check counts as failed: the default of Kubernetes' probes."""
_BURST, _WAIT, _TROUBLE = (100, 100), (50, 300), (1000, 1100)
"""How long what waits takes, in ms: in the burst, later, and while the upstream has trouble."""


@dataclass(frozen=True)
class Load:
    """How much load, for how long. All times in seconds from its start.

    Attributes:
        burst_size: How many clients ask at once at its start.
        rate: Requests a second while it is steady, from `steady_at` for `steady` seconds.
        health: The share of health checks in that; the others wait.
        trouble: From when to when the upstream is slow.
        watch: For how long the server is watched after its last answer.
        patience: After so long in all, whatever is unanswered counts as an error.
    """

    burst_size: int = 200
    clients: int = 300
    rate: float = 150.0
    steady_at: float = 3.0
    steady: float = 8.0
    health: float = 0.4
    trouble: tuple[float, float] = (5.0, 8.0)
    watch: float = 12.0
    patience: float = 32.0


class Request(NamedTuple):
    """One request to come, and the body that has to come back."""

    client: int
    due: float
    phase: str
    kind: str
    target: str
    answer: str


class Outcome(NamedTuple):
    """What came of one request; times in seconds from the start of the load; `problem` is "" if it was right."""

    phase: str
    kind: str
    due: float
    done: float
    problem: str

    @property
    def latency(self) -> float:
        """Seconds from when the request was due until it was answered."""
        return self.done - self.due


class Sample(NamedTuple):
    """The server at one moment: seconds from the start of the load, its threads, its processor seconds so far."""

    at: float
    threads: int
    cpu: float


@dataclass
class Run:
    """One server under the load.

    Attributes:
        left: The names of the threads that were left at the end.
        memory: The most kB of memory the server ever held; 0 where the system does not tell.
        loop: The module of its event loop.
    """

    name: str
    outcomes: list[Outcome]
    samples: list[Sample]
    left: list[str]
    memory: int
    loop: str

    def of(self, phase: str, *kinds: str) -> list[Outcome]:
        return [one for one in self.outcomes if one.phase == phase and (not kinds or one.kind in kinds)]

    def peak(self) -> int:
        return max(sample.threads for sample in self.samples)

    def late_checks(self) -> int:
        """Return how many health checks of the steady phase took longer than a prober waits."""
        return sum(one.latency > TOO_LATE for one in self.of("steady", "health"))

    def burst_took(self) -> float:
        """Return the seconds from the burst to its last answer."""
        return max(one.latency for one in self.of("burst"))

    def wrong(self) -> list[str]:
        """Return a text that names the first few wrong or missing answers, if there are any."""
        found = [one.problem for one in self.outcomes if one.problem]
        shown = "".join(f"\n  {problem}" for problem in found[:5])
        count = len(self.outcomes)
        return [f"{self.name}: {len(found):,} of {count:,} answers were wrong or missing:{shown}"] if found else []


def plan(load: Load) -> list[Request]:
    """Draw the load: the same load always gives the same requests."""
    dice, found = random.Random(20), list[Request]()

    def add(client: int, due: float, phase: str, kind: str, waits: tuple[int, int]) -> None:
        ms = dice.randint(*waits)
        target, body = {"health": ("/trivial", {"answer": 42}), "wait": (f"/wait/{ms}", {"waited": ms})}[kind]
        found.append(Request(client, due, phase, kind, target, json.dumps(body, separators=(",", ":"))))

    for client in range(load.burst_size):
        add(client, 0.0, "burst", "wait", _BURST)
    gap = load.clients / load.rate
    for client in range(load.clients):
        due = load.steady_at - dice.uniform(0.0, 10 * gap)
        while due < load.steady_at + load.steady:
            if due >= load.steady_at:
                slow = load.trouble[0] <= due < load.trouble[1]
                kind = "health" if dice.random() < load.health else "wait"
                add(client, due, "steady", kind, _TROUBLE if slow else _WAIT)
            due += _PAUSE + dice.expovariate(1.0 / max(0.01, gap - _PAUSE))
    return found


async def _judged(client: Connection, target: str, expected: str) -> str:
    """Ask, and return "" for a right answer, else what is wrong with it."""
    try:
        status, body = await client.get(request(target))
    except (OSError, BadResponse) as error:
        return f"error: {error!r}"
    if status == 200 and body == expected.encode():
        return ""
    return f"wrong: {status} {body[:200]!r} instead of {expected[:200]!r}"


async def _ask_all(client: Connection, port: int, mine: list[Request], start: float, end: float) -> list[Outcome]:
    """Send one client's requests when they are due, one after the other; one due meanwhile waits its turn."""
    loop, outcomes = asyncio.get_running_loop(), list[Outcome]()
    for each in mine:
        await asyncio.sleep(start + each.due - loop.time())
        try:
            async with asyncio.timeout_at(end):
                problem = await _judged(client, each.target, each.answer)
        except TimeoutError:
            problem = "error: not answered in time"
        if problem.startswith("error"):
            client.close()
            client = await Connection.open(port)
        outcomes.append(Outcome(each.phase, each.kind, each.due, loop.time() - start, problem))
    client.close()
    return outcomes


async def play(port: int, requests: list[Request], patience: float) -> tuple[float, list[Outcome]]:
    """Open every connection, ask for everything, and return when that began on the loop's clock and what came of it."""
    mine: dict[int, list[Request]] = {}
    for each in sorted(requests, key=lambda each: each.due):
        mine.setdefault(each.client, []).append(each)
    clients = [await Connection.open(port) for _ in mine]
    start = asyncio.get_running_loop().time() + 0.05
    asking = zip(clients, mine.values(), strict=True)
    parts = await asyncio.gather(*[_ask_all(client, port, one, start, start + patience) for client, one in asking])
    return start, sorted((outcome for part in parts for outcome in part), key=lambda outcome: outcome.due)
