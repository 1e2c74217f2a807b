"""What a question is made of: its cells, columns and targets. No timing and no threads here."""

from __future__ import annotations

import gc
import importlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.peer import Peer

ROOT = Path(__file__).resolve().parents[2]

Variant = dict[str, Any]
Params = Mapping[str, Any]
Samples = dict[str, list[float]]

POOL_QUESTIONS = (
    "submit_collect",
    "with_argument",
    "round_trip",
    "map_items",
    "cold_burst",
    "computing",
    "sizing",
    "memory",
    "idle_cost",
)
LOOP_QUESTIONS = (
    "offload",
    "anyio_tasks",
    "loop_lag",
    "loop_beside",
    "fastapi_burst",
    "fastapi_rate",
    "health_beside",
)
TASK_QUESTIONS = (
    "simple_sum",
    "cold_map",
    "semaphore",
    "timers",
    "lanes",
    "fairness",
    "watching",
)
SERVER_QUESTIONS = (
    "server_sizes",
    "waiting",
    "slow_clients",
    "echo",
    "web_server",
    "kill_child",
    "stacks",
)
OTHER_QUESTIONS = (
    "blocked_tasks",
    "beyond",
)
QUESTIONS = POOL_QUESTIONS + LOOP_QUESTIONS + TASK_QUESTIONS + SERVER_QUESTIONS + OTHER_QUESTIONS

GC_POLICY = (
    "the garbage collector stays on, as in a user's program; a full collection precedes every repeat, "
    "outside the time taken (memory: off while counting)"
)


@dataclass(frozen=True, slots=True)
class Settings:
    """How one run was asked for.

    Attributes:
        pin: the processor every cell is held to, or None.
        workers: the thread ceilings that submit_collect, with_argument, round_trip and offload are asked at.
        loads: the loads of sizing; none means the usual ones.
        beside: the folder of another checkout, whose ebbpool is asked the same; "" for none.
    """

    quick: bool = False
    rounds: int = 3
    pin: int | None = None
    workers: tuple[int, ...] = (1, 4, 32)
    peers: tuple[str, ...] = ()
    loads: tuple[str, ...] = ()
    beside: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One measured figure; less is better, unless it says otherwise.

    Attributes:
        ratio: whether a column "times the rival" stands beside it.
        worst: the worst of all samples counts, and not their median.
        more: more is better, as of a rate.
        empty: what to print where a cell has no such sample.
    """

    metric: str
    label: str
    digits: int = 2
    ratio: bool = True
    worst: bool = False
    more: bool = False
    empty: str = "-"


@dataclass(frozen=True, slots=True)
class Target:
    """A figure to reach: `peer`'s metric, divided by `rival`'s if one is named, is at most `limit`.

    Of a column where more is better it is at least `limit`.

    Attributes:
        where: the variant of `peer` it is asked of.
        rival_where: the variant of `rival`; None means the same one.
        pinned: asked only of runs held to one processor (True) or free to roam (False); None: of both.
        gil: asked only of interpreters with (True) or without (False) a GIL; None: of both.
        rival_metric: the metric of `rival`; "" means the same one.
        above: the peer that is taken off both figures first, a floor; None: none.
        above_where: the variant of that; None means the same one.
    """

    text: str
    peer: str
    metric: str
    limit: float
    where: Variant
    rival: str | None = None
    rival_where: Variant | None = None
    pinned: bool | None = None
    gil: bool | None = None
    rival_metric: str = ""
    above: str | None = None
    above_where: Variant | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """One question, asked of every peer.

    Attributes:
        module: the module that holds it as `QUESTION`, so that a fresh process can find it.
        variants: the cells of a peer, or the reason why the question makes no sense for it.
        sizes: the fixed sizes, made once in the parent and handed to every cell; takes `quick`.
        measure: runs in a fresh process and returns the samples by metric.
        rival: the peer that ratios refer to, and what heads their column.
        baseline: the variant of the rival that ratios refer to; None means the row's own, or the one most
            like it.
        rounds_factor: cells that cost little and vary much are asked more often, and the reverse.
        order: by what the cells of a round are sorted before they are asked in turn.
        skip: given the outcomes so far, why a cell need not be asked (again), or "".
        findings: given the `report.Answers`, the headers and rows of a table of the question's own.
        found_targets: given the `report.Answers`, targets that are known only when all is measured.
        contests: given the `report.Answers`, who is beside whom, where that is not the best under each variant.
        lead: given the `report.Answers`, what to say first, where that is not who is ahead.
        axis: the key of a variant that a picture has from left to right; "" for bars.
        picture: the column that a picture shows, where that is not the first one.
        floor: what no pool can do without, in words.
        limits: what the figures of ours are bound by.
        quick_cells: how many variants of a peer are asked with `--quick`, the first and the last first; 0: all.
    """

    module: str
    title: str
    method: str
    columns: tuple[Column, ...]
    variants: Callable[[Peer, Settings], list[Variant] | str]
    sizes: Callable[[bool], dict[str, Any]]
    measure: Callable[[Peer, Params], Samples]
    targets: Callable[[Settings], tuple[Target, ...]] = field(default=lambda settings: ())
    rival: tuple[str, str] = ("stdlib", "x TPE")
    baseline: Variant | None = None
    rounds_factor: float = 1.0
    order: Callable[[Variant], Any] = json.dumps
    skip: Callable[[Sequence[Any], Peer, Variant], str] = field(default=lambda outcomes, peer, variant: "")
    findings: Callable[[Any], tuple[list[str], list[list[str]]]] | None = None
    found_targets: Callable[[Any], tuple[Target, ...]] = field(default=lambda answers: ())
    contests: Callable[[Any], Sequence[Any]] | None = None
    lead: Callable[[Any], str] | None = None
    axis: str = ""
    picture: Column | None = None
    floor: str = ""
    limits: str = ""
    quick_cells: int = 1

    @property
    def name(self) -> str:
        return self.module.rpartition(".")[2]

    @property
    def drawn(self) -> Column:
        """The column that a picture shows."""
        return self.picture or self.columns[0]

    def chosen(self, peer: Peer, settings: Settings) -> list[Variant] | str:
        """Return the cells of a peer, fewer of them with `--quick`, or why there are none."""
        found = self.variants(peer, settings)
        if isinstance(found, str) or not settings.quick or not 0 < self.quick_cells < len(found):
            return found
        return [*found[: max(1, self.quick_cells - 1)], *found[-1:]][: self.quick_cells]

    def rounds(self, settings: Settings) -> int:
        return 1 if settings.quick else max(1, round(settings.rounds * self.rounds_factor))


def load_question(module: str) -> Question:
    """Returns the question that `module` holds."""
    question = importlib.import_module(module).QUESTION
    assert isinstance(question, Question)
    return question


def by_workers(settings: Settings) -> list[Variant]:
    """One cell for every ceiling that was asked for."""
    return [{"workers": workers} for workers in settings.workers]


def pool_variants(question: str, *variants: Variant) -> Callable[[Peer, Settings], list[Variant] | str]:
    """The same cells for every peer that has a pool and nothing against the question."""

    def choose(peer: Peer, settings: Settings) -> list[Variant] | str:
        return peer.not_for(question) or list(variants)

    return choose


def server_variants(
    question: str, *variants: Variant, otherwise: str = "no server for this question"
) -> Callable[[Peer, Settings], list[Variant] | str]:
    """The same cells for every peer that has a server program for the question."""

    def choose(peer: Peer, settings: Settings) -> list[Variant] | str:
        return list(variants) if question in peer.listens else otherwise

    return choose


def timed(work: Callable[[], object], repeats: int, *, warm_ups: int = 1) -> list[float]:
    """Returns the seconds that each of `repeats` calls took, after `warm_ups` calls that do not count."""
    taken = []
    for _ in range(warm_ups + repeats):
        gc.collect()
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return taken[warm_ups:]


def percentile(samples: Sequence[float], share: float) -> float:
    """Returns the smallest sample that at least `share` of all are no greater than."""
    return sorted(samples)[max(0, math.ceil(share * len(samples)) - 1)]


def nothing() -> None:
    """The trivial task."""
