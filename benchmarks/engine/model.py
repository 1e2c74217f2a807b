"""What a question is made of: its cells, columns and targets."""

from __future__ import annotations

import asyncio
import gc
import importlib
import math
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.peers import package
from benchmarks.peers.peer import Peer

Variant = dict[str, Any]
Params = Mapping[str, Any]
Samples = dict[str, list[float]]

QUESTIONS = (
    "submit_collect", "with_argument", "round_trip", "map_items", "cold_burst", "computing", "sizing", "memory",
    "idle_cost", "offload", "anyio_tasks", "loop_lag", "loop_beside", "fastapi_burst", "fastapi_rate", "health_beside",
    "simple_sum", "cold_map", "semaphore", "timers", "lanes", "fairness", "watching", "server_sizes", "waiting",
    "slow_clients", "echo", "web_server", "kill_child", "stacks", "blocked_tasks", "overload",
    "gunicorn_threads", "lost_worker",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """How a run was asked for.

    Attributes:
        pin: The processor that every cell is held to, or None.
        workers: The thread ceilings of the questions that ask for several.
        peers: The peers to ask; none means all.
        beside: The folder of another checkout, whose ebbpool is asked the same; "" for none.
    """

    quick: bool = False
    rounds: int = 3
    pin: int | None = None
    workers: tuple[int, ...] = (1, 4, 32)
    peers: tuple[str, ...] = ()
    beside: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One measured figure; less is better, unless it says otherwise.

    Attributes:
        ratio: Whether ours is compared with the rivals' by it.
        worst: The worst of all samples counts, and not their median.
        more: More is better, as of a rate.
    """

    metric: str
    label: str
    digits: int = 2
    ratio: bool = True
    worst: bool = False
    more: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """A figure to reach: the metric of each of `peers`, divided by that of a rival if there is one, is at most `limit`.

    Of a column where more is better it is at least `limit`. It is asked of each variant that has what `where` says.

    Attributes:
        peers: Their names, with spaces.
        rival: The name of the rival; with `rival_where` alone it is the peer itself.
        rival_where: What the rival's variant has in place of the peer's; nothing means the same one, and the best of
            those that the question leaves free to a rival.
        pinned: Asked only of runs held to one processor (True) or free to roam (False); None: of both.
        gil: Asked only with (True) or without (False) a GIL; None: of both.
        above: The floor that is taken off both figures first, "" for none; `above_where` is as `rival_where`.
    """

    text: str
    peers: str
    metric: str
    limit: float
    where: Variant = field(default_factory=dict)
    rival: str = ""
    rival_where: Variant = field(default_factory=dict)
    pinned: bool | None = None
    gil: bool | None = None
    above: str = ""
    above_where: Variant = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Question:
    """One question, asked of its peers.

    Attributes:
        peers: The names of those that are asked.
        variants: The cells of a peer, by its name.
        sizes: The fixed sizes, made once in the parent and handed to every cell; takes `quick`.
        measure: Runs in a fresh process and returns the samples by metric.
        targets: What is to be reached.
        rounds_factor: Cells that cost little and vary much are asked more often, and the reverse.
        skip: Given the cells so far, a peer's name and a variant: why that cell need not be asked, or "".
        free: The key of a variant in which a rival need not be like ours; its best value counts.
        floor: What no pool can do without, in words.
        limits: What the figures of ours are bound by.
        quick_cells: How many variants of a peer are asked with `--quick`; 0: all.
        name: The module in this package that holds it as `QUESTION`, so that a fresh process can find it.
    """

    title: str
    method: str
    columns: tuple[Column, ...]
    peers: tuple[str, ...]
    variants: Callable[[str, Settings], list[Variant]]
    sizes: Callable[[bool], dict[str, Any]]
    measure: Callable[[Peer, Params], Samples]
    targets: Sequence[Target] = ()
    rounds_factor: float = 1.0
    skip: Callable[[Sequence[Mapping[str, Any]], str, Variant], str] | None = None
    free: str = ""
    floor: str = ""
    limits: str = ""
    quick_cells: int = 1
    name: str = ""

    def chosen(self, peer: str, settings: Settings) -> list[Variant]:
        """Return the cells of a peer; with `--quick` the first ones and the last."""
        found = self.variants(peer, settings)
        if not settings.quick or not 0 < self.quick_cells < len(found):
            return found
        return [*found[: max(1, self.quick_cells - 1)], *found[-1:]][: self.quick_cells]

    def rounds(self, settings: Settings) -> int:
        return 1 if settings.quick else max(1, round(settings.rounds * self.rounds_factor))


def load_question(name: str) -> Question:
    """Return the question of that name."""
    question = importlib.import_module(f"benchmarks.{name}").QUESTION
    assert isinstance(question, Question)
    return replace(question, name=name)


def asks(name: str) -> str:
    """Return what a question asks: the first line of its module."""
    return (importlib.import_module(f"benchmarks.{name}").__doc__ or "").strip().partition("\n")[0]


def always(*variants: Variant) -> Callable[[str, Settings], list[Variant]]:
    """Return the same cells for every peer."""
    return lambda peer, settings: list(variants)


def by_workers(peer: str, settings: Settings) -> list[Variant]:
    """Return one cell for every ceiling that was asked for."""
    return [{"workers": workers} for workers in settings.workers]


def on_loop(main: Callable[[Peer, Params], Coroutine[Any, Any, Samples]]) -> Callable[[Peer, Params], Samples]:
    """Return what runs `main(peer, params)` on the loop `params["loop"]` as the peer makes it."""

    def measure(peer: Peer, params: Params) -> Samples:
        name: str = params["loop"]
        found = package(name)
        if name == "trio":
            samples: Samples = found.run(main, peer, params)
            return samples
        with asyncio.Runner(loop_factory=lambda: peer.new_loop(name, params["workers"])) as runner:
            return runner.run(main(peer, params))

    return measure


def timed(work: Callable[[], object], repeats: int, *, warm_ups: int = 1) -> list[float]:
    """Return the seconds that each of `repeats` calls took, after `warm_ups` calls that do not count.

    A full collection precedes each, outside the time taken.
    """
    taken = []
    for _ in range(warm_ups + repeats):
        gc.collect()
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return taken[warm_ups:]


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that at least `share` of all are no greater than."""
    return sorted(samples)[max(0, math.ceil(share * len(samples)) - 1)]


def nothing() -> None:
    """The trivial task."""
