"""The rounds' load generator: many connections, each with one request under way, as fast as the answers come.

It costs far less per request than `load.py`, so that the server is what is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from benchmarks.load.http import BadResponse, request, take_response

from .control import Link, loop_factory
from .load import verdict

PATIENCE = 15.0
"""Seconds after a round's end at which whatever is unanswered counts as an error."""


class Mark(NamedTuple):
    """What came of one request; times in seconds from the start of its round."""

    asked: float
    answered: float
    problem: str
    """Empty if the answer was right."""


@dataclass(frozen=True)
class Round:
    """Something to ask for, by how many at once, and for how long."""

    target: str
    answer: str
    clients: int
    seconds: float
    """For how long every client asks again as soon as it is answered; 0: each asks once."""


def judge(received: bytes, expected: bytes) -> str | None:
    """Return "" for a right answer, None if it is not all there yet, else what is wrong with it.

    Raises:
        BadResponse: What came is no response at all.
    """
    found = take_response(received)
    return None if found is None else verdict(found[0], found[1] + found[2], expected)


class Caller(asyncio.Protocol):
    """One keep-alive connection.

    Args:
        asked: What to send.
        expected: The body that has to come back.
        answered: Called with the caller and a `Mark` whose times are still on the performance counter.
    """

    def __init__(self, asked: bytes, expected: bytes, answered: Callable[[Caller, Mark], None]) -> None:
        self._request = asked
        self._expected = expected
        self._answered = answered
        self._received = b""
        self._asked = 0.0
        self._transport: asyncio.Transport | None = None
        self.busy = False

    @property
    def usable(self) -> bool:
        """Whether it can ask again."""
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._settle(f"error: connection lost: {error!r}")

    def data_received(self, data: bytes) -> None:
        self._received += data
        try:
            said = judge(self._received, self._expected)
        except BadResponse as error:
            self.close()
            self._settle(f"error: {error!r}")
        else:
            if said is not None and self.busy:
                self._received = b""
                self._settle(said)

    def ask(self) -> None:
        """Send the request; must not be `busy`. On a lost connection that is an error at once."""
        self.busy = True
        self._asked = time.perf_counter()
        if self._transport is None:
            self._settle("error: connection lost before it was used")
        else:
            self._transport.write(self._request)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def give_up(self) -> None:
        """Close; what is under way counts as an error."""
        self.close()
        self._settle("error: not answered in time")

    def _settle(self, problem: str) -> None:
        if self.busy:
            self.busy = False
            self._answered(self, Mark(self._asked, time.perf_counter(), problem))


async def play(port: int, what: Round, patience: float = PATIENCE) -> list[Mark]:
    """Open all connections, play one round on them, and return what came of each request, as answered."""
    loop = asyncio.get_running_loop()
    marks: list[Mark] = []
    over = asyncio.Event()
    under_way = what.clients
    start = until = 0.0

    def answered(caller: Caller, mark: Mark) -> None:
        nonlocal under_way
        marks.append(Mark(mark.asked - start, mark.answered - start, mark.problem))
        if mark.answered < until and caller.usable:
            caller.ask()
            return
        under_way -= 1
        if not under_way:
            over.set()

    callers: list[Caller] = []
    try:
        for _ in range(what.clients):
            _, caller = await loop.create_connection(
                lambda: Caller(request(what.target), what.answer.encode(), answered), "127.0.0.1", port
            )
            callers.append(caller)
        start = time.perf_counter()
        until = start + what.seconds
        for caller in callers:
            caller.ask()
        try:
            async with asyncio.timeout(what.seconds + patience):
                await over.wait()
        except TimeoutError:
            for caller in callers:
                caller.give_up()
        return marks
    finally:
        for caller in callers:
            caller.close()


def order(port: int, what: Round, out: Path) -> dict[str, Any]:
    """Return the message that asks the generator for one round."""
    return {"port": port, "round": asdict(what), "out": str(out)}


def save_marks(path: Path, marks: list[Mark]) -> None:
    """Write what came of a round."""
    path.write_text(json.dumps(marks), encoding="utf-8")


def load_marks(path: Path) -> list[Mark]:
    """Read what `save_marks` wrote."""
    return [Mark(*row) for row in json.loads(path.read_text(encoding="utf-8"))]


async def main(control: int) -> None:
    """Play the rounds that the parent orders, one after the other, until it lets go."""
    link = await Link.to_parent(control)
    await link.send(event="up")
    while (ordered := await link.receive()) is not None:
        cpu, wall = time.process_time(), time.perf_counter()
        marks = await play(ordered["port"], Round(**ordered["round"]))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        save_marks(Path(ordered["out"]), marks)
        await link.send(event="played", cpu=cpu, wall=wall)
    link.close()


if __name__ == "__main__":
    argument_parser = argparse.ArgumentParser(prog="python -m benchmarks.demo.hammer")
    argument_parser.add_argument("--control", type=int, required=True)
    options = argument_parser.parse_args()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main(options.control))
