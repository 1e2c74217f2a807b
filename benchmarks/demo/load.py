r"""The load, decided beforehand from a seed, and the clients that ask: who asks for what, when, and what came of it.

The servers lean on a slow store: a TCP server that takes its time. One request per connection: ``"<n> <path>\n"`` is
answered with ``"<sha256>\n"`` after `delay` seconds.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlencode

from benchmarks.load.http import BadResponse, Connection, request

_TIMEOUT = 15.0
_SLOW = "slow-"
"""What a request's number begins with while the store has trouble."""
_PAUSE = 1.3
"""The least time between two requests of a client (s): more than the slowest takes, so that it waits for the server."""


@dataclass(frozen=True)
class Load:
    """How much load, for how long. All times in seconds from its start.

    Attributes:
        rate: Requests a second while it is steady, from `steady_at` for `steady` seconds.
        mix: The shares of the kinds of request in that.
        burst_at: When all clients of the burst ask at once; of which kinds, `burst` says.
        trouble: From when to when the upstream is slow.
        watch: For how long the server is watched after its last answer.
        patience: After so long in all, whatever is unanswered counts as an error.
    """

    clients: int
    rate: float
    steady_at: float
    steady: float
    mix: Mapping[str, float]
    burst_at: float
    burst: Mapping[str, float]
    burst_size: int
    trouble: tuple[float, float] = (0.0, 0.0)
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
        memory: The most bytes of memory the server ever held; 0 where the system does not tell.
    """

    name: str
    outcomes: list[Outcome]
    samples: list[Sample]
    facts: dict[str, Any]
    left: list[str]
    memory: int


def plan(load: Load, digests: Mapping[str, str]) -> list[Request]:
    """Draw the load: the same load and digests always give the same requests."""
    dice, paths, found = random.Random(20), sorted(digests), list[Request]()

    def add(client: int, due: float, phase: str, mix: Mapping[str, float]) -> None:
        (kind,) = dice.choices(list(mix), list(mix.values()))
        path = dice.choice(paths)
        number = (_SLOW if load.trouble[0] <= due < load.trouble[1] else "") + str(len(found))
        stored = {"path": path, "sha256": digests[path]}
        query, body = {
            "health": ({}, {"ok": True}),
            "wait": ({"ms": "100"}, {"waited": 100}),
            "digest": ({"path": path}, stored),
            "verify": ({"n": number, "path": path}, stored | {"stored": digests[path]}),
        }[kind]
        target = f"/{kind}?{urlencode(query)}" if query else f"/{kind}"
        found.append(Request(client, due, phase, kind, target, json.dumps(body, separators=(",", ":"))))

    for client in range(load.burst_size):
        add(client, load.burst_at, "burst", load.burst)
    gap = load.clients / load.rate
    for client in range(load.clients):
        due = load.steady_at - dice.uniform(0.0, 10 * gap)
        while due < load.steady_at + load.steady:
            if due >= load.steady_at:
                add(client, due, "steady", load.mix)
            due += _PAUSE + dice.expovariate(1.0 / max(0.01, gap - _PAUSE))
    return found


async def judged(client: Connection, target: str, expected: str) -> str:
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
                problem = await judged(client, each.target, each.answer)
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
    parts = await asyncio.gather(
        *(
            _ask_all(client, port, found, start, start + patience)
            for client, found in zip(clients, mine.values(), strict=True)
        )
    )
    return start, sorted((outcome for part in parts for outcome in part), key=lambda outcome: outcome.due)


def delay(n: str) -> float:
    """Return how long the store takes over request ``n``, always the same: 0.05 to 0.3 s; in trouble 1 to 1.1 s."""
    drawn = zlib.crc32(n.encode())
    return (1000 + drawn % 101 if n.startswith(_SLOW) else 50 + drawn % 251) / 1000


async def serve_store(digests: Mapping[str, str]) -> asyncio.Server:
    """Start the store on a free port of 127.0.0.1."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            n, _, path = (await reader.readline()).decode().rstrip("\n").partition(" ")
            await asyncio.sleep(delay(n))
            writer.write(f"{digests.get(path, 'unknown')}\n".encode())
            await writer.drain()
        except ConnectionError:
            return
        finally:
            writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", 0, backlog=512)


def fetch(port: int, n: str, path: str) -> str:
    """Ask the store for a path's digest; blocks the calling thread until it comes.

    Raises:
        OSError: The store is gone, or took longer than `_TIMEOUT`.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT) as connection:
        connection.sendall(f"{n} {path}\n".encode())
        with connection.makefile("rb") as file:
            return file.readline().decode().strip()
