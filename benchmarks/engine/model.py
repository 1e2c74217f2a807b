"""What a question is made of: its cells and columns."""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib
import math
import statistics
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.peers import package
from benchmarks.peers.peer import Peer

Variant = dict[str, Any]
Params = Mapping[str, Any]
Samples = dict[str, list[float]]

_FILES = {
    "tasks": "submit_collect simple_sum round_trip map_items",
    "bursts": "cold_burst computing blocked_tasks",
    "sizing": "sizing",
    "costs": "memory stacks watching",
    "loops": "offload anyio_tasks loop_lag loop_beside",
    "turns": "fairness overload",
    "timing": "semaphore timers",
    "fastapi": "fastapi_burst fastapi_rate health_beside connections",
    "tcp": "server_sizes waiting slow_clients echo",
    "web": "web_server gunicorn_threads kill_child",
    "cluster": "lost_worker",
}
QUESTIONS = {name: module for module, names in _FILES.items() for name in names.split()}
"""The module of each question."""


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
        wrong: It counts what must not happen: unless it is 0, a run that has it of ours fails.
    """

    metric: str
    label: str
    digits: int = 2
    ratio: bool = True
    worst: bool = False
    more: bool = False
    wrong: bool = False


Measure = Callable[[Peer, Params], Samples]


def unmeasured(peer: Peer, params: Params) -> Samples:
    """Stand for what measures, before it is decorated."""
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Question:
    """One question, asked of its peers; it decorates what measures. docs/performance/questions.md says how it is asked.

    Attributes:
        peers: The names of those that are asked, with spaces.
        variants: The cells, of every peer, or by its name.
        sizes: The fixed sizes, which every cell is given; with `--quick` a tenth of each number, and a quarter of each
            time (and of whatever else has a point).
        turns: If not 0, cells are given how many `turns` of `compute` take so many seconds, counted in the parent: all
            of them compute the same.
        rounds_factor: Cells that cost little and vary much are asked more often, and the reverse.
        skip: Given the cells so far, a peer's name and a variant: why that cell need not be asked, or "".
        free: The key of a variant in which a rival need not be like ours; its best value counts.
        measure: What is decorated: runs in a fresh process and returns the samples by metric.
        name: The name of that.
    """

    title: str
    columns: Sequence[Column]
    peers: str
    variants: Sequence[Variant] | Callable[[str, Settings], Sequence[Variant]]
    sizes: Mapping[str, int | float] = field(default_factory=dict)
    turns: float = 0.0
    rounds_factor: float = 1.0
    skip: Callable[[Sequence[Mapping[str, Any]], str, Variant], str] | None = None
    free: str = ""
    measure: Measure = unmeasured
    name: str = ""

    def __call__(self, measure: Measure) -> Question:
        return replace(self, measure=measure, name=measure.__name__)

    def cells(self, peer: str, settings: Settings) -> list[Variant]:
        """Return the cells of a peer; with `--quick` the first and the last."""
        found = list(self.variants(peer, settings) if callable(self.variants) else self.variants)
        return [*found[:1], *found[1:][-1:]] if settings.quick else found

    def sized(self, quick: bool) -> dict[str, Any]:
        """Return the fixed sizes."""
        sizes: dict[str, int | float] = dict(self.sizes)
        for name, size in self.sizes.items() if quick else ():
            sizes[name] = max(1, size // 10) if isinstance(size, int) else size / 4
        return sizes | ({"turns": turns_in(self.turns)} if self.turns else {})

    def rounds(self, settings: Settings) -> int:
        return 1 if settings.quick else max(1, round(settings.rounds * self.rounds_factor))


def load_question(name: str) -> Question:
    """Return the question of that name."""
    question = getattr(importlib.import_module(f"benchmarks.{QUESTIONS[name]}"), name)
    assert isinstance(question, Question)
    return question


def text_of(variant: Variant) -> str:
    return " ".join(f"{name}={value}" for name, value in variant.items())


def by_workers(peer: str, settings: Settings) -> list[Variant]:
    """Return one cell for every ceiling that was asked for."""
    return [{"workers": workers} for workers in settings.workers]


def on_loop(main: Callable[[Peer, Params], Coroutine[Any, Any, Samples]]) -> Measure:
    """Return what runs `main(peer, params)` on the loop `params["loop"]` as the peer makes it."""

    @functools.wraps(main)
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


def us_each(work: Callable[[], object], count: int, repeats: int) -> list[float]:
    """Return the µs of each of the `count` things that `work` does, for each of its repeats; see `timed`."""
    return [seconds / count * 1e6 for seconds in timed(work, repeats)]


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that at least `share` of all are no greater than."""
    return sorted(samples)[max(0, math.ceil(share * len(samples)) - 1)]


def spread(seconds: Sequence[float]) -> Samples:
    """Return the median of some times and their 99th percentile, in ms."""
    return {"p50": [statistics.median(seconds) * 1e3], "p99": [percentile(seconds, 0.99) * 1e3]}


def nothing() -> None:
    """The trivial task."""


def compute(turns: int) -> int:
    """Compute for a time that depends on nothing but `turns`."""
    value = 1
    for _ in range(turns):
        value = value * 1103515245 + 12345 & 0x7FFFFFFF
    return value


def turns_in(seconds: float) -> int:
    """Return how many turns of `compute` take so long in this process."""
    turns, best = 20_000, float("inf")
    for _ in range(25):
        start = time.perf_counter()
        compute(turns)
        best = min(best, time.perf_counter() - start)
    return round(turns * seconds / best)
