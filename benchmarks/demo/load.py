"""The loads, and the clients that ask: in a process of their own, on one selector, with little work a request."""

from __future__ import annotations

import selectors
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.load.http import BadResponse, Client, Clients, request
from benchmarks.servers.fastapi import BODY, COMPUTING, target

ALIVE, _ITEM = b'{"status":"alive"}', b'{"id":1,"name":"first"}'
_EVERY, _WARM_UP, _SETTLE = 0.02, 8, 0.2


@dataclass(frozen=True)
class Load:
    """Clients that all ask at once, once in each round; times in seconds.

    Attributes:
        does: What the endpoint does, for "clients ask for something that ...".
        rounds: How often each server has its turn; fewer, but once at least, if they take longer than `seconds`.
        patience: After so long a client gives up.
        may_fail: Whether an error is a finding about a rival, and not a fault of the demo.
    """

    name: str
    does: str
    clients: int
    target: str
    answer: bytes = BODY
    rounds: int = 1
    seconds: float = 20.0
    patience: float = 10.0
    may_fail: bool = False


LOADS = (
    Load("compute", "computes for 5 ms", 100, target(COMPUTING), rounds=5),
    Load("sleep", "sleeps for 100 ms", 200, target("100 ms"), rounds=7),
    Load("query", "queries a database for 50 ms", 400, target("model"), _ITEM, rounds=1, may_fail=True),
)


class Round(NamedTuple):
    """What came of a load on one server; times in seconds from when the clients asked.

    Attributes:
        answers: When each right answer came, in order.
        failed: How many answers were wrong or errors, or had not come when patience ended.
        seconds: When the last of all had come, right or not.
        checks: When each health check was due, and how long it then took.
        bad_checks: How many of them had a wrong answer.
    """

    answers: list[float]
    failed: int
    seconds: float
    checks: list[tuple[float, float]]
    bad_checks: int


class Sample(NamedTuple):
    """A server at one moment: seconds from the start, its threads, its processor seconds so far."""

    at: float
    threads: int
    cpu: float


@dataclass
class Side:
    """A server, what came of each load there, and the most kB of memory it ever held; 0 if the system does not tell."""

    name: str
    rounds: dict[str, list[Round]] = field(default_factory=lambda: defaultdict(list))
    samples: list[Sample] = field(default_factory=list)
    memory: int = 0

    def typical(self, load: Load) -> Round:
        """Return the round of which the last answer came neither early nor late."""
        rounds = sorted(self.rounds[load.name], key=lambda each: each.seconds)
        return rounds[len(rounds) // 2]

    def problems(self, loads: Sequence[Load], ours: bool) -> list[str]:
        """Say what ought not to have been: errors are a finding where a load `may_fail`, but never in ours."""
        judged = [load.name for load in loads if ours or not load.may_fail]
        found = {name: sum(each.failed for each in self.rounds[name]) for name in judged}
        found["health check"] = sum(each.bad_checks for rounds in self.rounds.values() for each in rounds)
        return [f"{self.name}: {bad} answers wrong or missing, {name}." for name, bad in found.items() if bad]


def play(port: int, load: Load) -> Round:
    """Warm a server up, have all clients ask it at once, and ask for its health until each has an answer."""
    for asked, answer in (("/health", ALIVE), (load.target, load.answer)):
        with Clients(port, _WARM_UP, asked, answer) as some:
            some.burst(load.patience)
    time.sleep(_SETTLE)
    clock, answers, checks, bad_checks = time.perf_counter, list[float](), list[tuple[float, float]](), 0
    with selectors.DefaultSelector() as selector, ExitStack() as stack:
        health = Client(port, selector, request("/health"), ALIVE)
        waiting = {Client(port, selector, request(load.target), load.answer) for _ in range(load.clients)}
        for client in (health, *waiting):
            stack.callback(client.close)
        due = start = clock()
        end, seconds, asking = start + load.patience, load.patience, False
        for client in waiting:
            client.ask()
        while (waiting or asking) and (now := clock()) < end:
            if not asking and due <= now:
                health.ask()
                asking = True
            for key, _ in selector.select((end if asking else due) - now):
                client = key.data
                try:
                    if (right := client.receive()) is None:
                        continue
                except (OSError, BadResponse):
                    client.close()
                    client.connect()
                    right = False
                now = clock()
                if client is health:
                    checks.append((due - start, now - due))
                    bad_checks += not right
                    due, asking = start + _EVERY * len(checks), False
                elif client in waiting:
                    waiting.remove(client)
                    seconds = now - start
                    if right:
                        answers.append(seconds)
        while asking and due < end:
            checks.append((due - start, end - due))
            due = start + _EVERY * len(checks)
    return Round(answers, load.clients - len(answers), load.patience if waiting else seconds, checks, bad_checks)
