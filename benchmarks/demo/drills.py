"""The FastAPI case's first load: short rounds on all sides in turn, every server being up at once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import measure
from .control import Child, child
from .hammer import Mark, Round, load_marks, order
from .run import Contender, Site


@dataclass(frozen=True)
class Drill:
    """A kind of round, and how often it is played on each side."""

    name: str
    what: Round
    times: int


@dataclass
class Side:
    """What the rounds of one side came to."""

    rounds: dict[str, list[list[Mark]]] = field(default_factory=dict)
    """By the drill's name, in the order they were played: what came of each request."""
    busy: list[float] = field(default_factory=list)
    """How busy the load generator was in each round: processor seconds per second."""
    peak_threads: int = 0


BURST, TRIVIAL, BRIEF = "burst", "trivial", "brief"
DRILLS = (
    Drill(BURST, Round("/wait?ms=100", '{"waited":100}', clients=200, seconds=0.0), times=6),
    Drill(TRIVIAL, Round("/health", '{"ok":true}', clients=64, seconds=0.4), times=6),
    Drill(BRIEF, Round("/wait?ms=5", '{"waited":5}', clients=64, seconds=0.4), times=6),
)
DRILLS_QUICK = tuple(
    Drill(drill.name, Round(drill.what.target, drill.what.answer, clients=50, seconds=drill.what.seconds / 5), times=1)
    for drill in DRILLS
)


def turns(sides: Sequence[Contender], round_number: int) -> list[Contender]:
    """Return who comes when in a round: with three sides, six rounds have every order once."""
    turn, first = divmod(round_number, len(sides))
    rotated = [*sides[first:], *sides[:first]]
    return rotated[::-1] if turn % 2 else rotated


async def side_by_side(
    sides: Sequence[Contender], drills: Sequence[Drill], site: Site, advance: Callable[[], None]
) -> dict[str, Side]:
    """Play all rounds on all sides in turn, all servers being up at once; return what was seen, by key.

    Raises:
        ChildFailed: A server or the load generator failed.
    """
    seen = {side.key: Side() for side in sides}
    async with contextlib.AsyncExitStack() as stack:
        log = site.folder / "hammer.log"
        load = await stack.enter_async_context(child("benchmarks.demo.hammer", log=log))
        await load.expect("a load generator", 30.0)
        ports: dict[str, int] = {}
        watches: dict[str, measure.Watch] = {}
        for side in sides:
            log = site.folder / f"{side.key}-rounds.log"
            server = await stack.enter_async_context(child(side.module, "--store", "0", *side.arguments, log=log))
            ports[side.key] = (await server.expect("a running server", 30.0))["port"]
            watches[side.key] = await stack.enter_async_context(measure.watch(server))
        for drill in drills:
            for number in range(drill.times):
                for side in turns(sides, number):
                    marks, busy = await play(load, ports[side.key], drill.what, site.folder / "round.json")
                    seen[side.key].rounds.setdefault(drill.name, []).append(marks)
                    seen[side.key].busy.append(busy)
                    advance()
        for side in sides:
            watch = watches[side.key]
            await watch.until(time.monotonic())
            seen[side.key].peak_threads = max(sample.threads for sample in watch.samples)
    return seen


async def play(load: Child, port: int, what: Round, out: Path) -> tuple[list[Mark], float]:
    """Have one round played; return what came of each request, and how busy the load generator was (0 to 1)."""
    await load.send(**order(port, what, out))
    played = await load.expect("the end of a round", 60.0)
    return load_marks(out), played["cpu"] / played["wall"]
