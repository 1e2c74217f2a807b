"""How much an untuned pool loses against the best fixed size of the same pool; arithmetic over outcomes alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.engine.model import Column, Target, Variant
from benchmarks.engine.runner import Outcome
from benchmarks.peers.peer import Peer
from benchmarks.report import report

UNTUNED = "untuned"
TIMES_BEST = 1.15
_AS_GOOD = 1.03
_HOPELESS = 3.0
_BEATEN = 1.5

MS = Column("ms", "ms", 1, ratio=False)
THREADS = Column("threads", "threads at most", 0, ratio=False, worst=True)
THREAD_SECONDS = Column("thread_seconds", "thread-seconds", 2, ratio=False)
HEADERS = [
    "variant",
    "peer",
    "ms",
    "threads at most",
    "thread-seconds",
    "best fixed",
    "its ms",
    "its thread-seconds",
    "x time",
    "x thread-seconds",
    "x best TPE",
]


def cell(load: str, threads: int | str) -> Variant:
    return {"load": load, "threads": threads}


def skip(outcomes: Sequence[Outcome], peer: Peer, variant: Variant) -> str:
    """Returns why a fixed size cannot be the best any more, or ""; sizes are asked from the largest down."""
    size = variant["threads"]
    if size == UNTUNED:
        return ""
    by_size: dict[int, list[float]] = {}
    for found in outcomes:
        if found.peer == peer.name and found.variant["load"] == variant["load"] and found.status == "ok":
            if found.variant["threads"] != UNTUNED:
                by_size.setdefault(found.variant["threads"], []).append(statistics.median(found.samples["ms"]))
    if not by_size:
        return ""
    taken = {measured: statistics.median(times) for measured, times in by_size.items()}
    least = min(taken.values())
    if size in taken:
        times = taken[size] / least
        return f"took {times:.1f} times as long as the best size" if times > _BEATEN else ""
    times = taken[min((larger for larger in taken if larger > size), default=size)] / least if max(taken) > size else 0
    return f"more threads took {times:.1f} times as long as still more" if times > _HOPELESS else ""


@dataclass(frozen=True, slots=True)
class Best:
    """The best fixed size of a peer under a load."""

    threads: int
    ms: float
    thread_seconds: float


def best(answers: report.Answers, peer: str, load: str) -> Best | None:
    """Returns the smallest size whose time is within 3% of the least.

    A size that was not asked in all rounds had been beaten by then; its median is one of fewer, and does not count.
    """
    found = []
    for asked, variant in answers.plan.cells:
        if asked.name == peer and variant["load"] == load and variant["threads"] != UNTUNED:
            ms = answers.figure(peer, variant, MS)
            thread_seconds = answers.figure(peer, variant, THREAD_SECONDS)
            if ms is not None and thread_seconds is not None:
                found.append((len(ms.by_round), Best(variant["threads"], ms.value, thread_seconds.value)))
    if not found:
        return None
    rounds = max(count for count, _ in found)
    sizes = [size for count, size in found if count == rounds]
    least = min(size.ms for size in sizes)
    return min((size for size in sizes if size.ms <= _AS_GOOD * least), key=lambda size: size.threads)


def targets(answers: report.Answers) -> tuple[Target, ...]:
    """Returns the target of each load: time within `TIMES_BEST` of the best fixed size that was found."""
    found = []
    for peer, variant in answers.plan.cells:
        if variant["threads"] == UNTUNED and peer.side == "ours":
            size = best(answers, peer.name, variant["load"])
            if size is not None:
                text = f"time at most {TIMES_BEST:g} of the best fixed size's ({size.threads})"
                beside = cell(variant["load"], size.threads)
                found.append(Target(text, peer.name, "ms", TIMES_BEST, variant, rival=peer.name, rival_where=beside))
    return tuple(found)


def contests(answers: report.Answers) -> list[report.Contest]:
    """Return, for each load, our untuned pool beside the best fixed size of the standard library's."""
    found = []
    for load in dict.fromkeys(variant["load"] for _, variant in answers.plan.cells):
        figures = ((peer, answers.figure(peer.name, cell(load, UNTUNED), MS)) for peer in answers.peers.values())
        ours = [report.Side(peer.label, figure) for peer, figure in figures if figure and peer.side == "ours"]
        stock = best(answers, "stdlib", load)
        if ours and stock is not None:
            fixed = answers.figure("stdlib", cell(load, stock.threads), MS)
            rival = report.Side(f"ThreadPoolExecutor({stock.threads})", fixed) if fixed else None
            contest = report.contest_of(cell(load, UNTUNED), MS, ours[0], rival)
            found += [contest] if contest else []
    return found


def _over(value: float, by: float) -> str:
    return f"{value / by:.2f}" if by else "-"


def findings(answers: report.Answers) -> tuple[list[str], list[list[str]]]:
    """Returns headers and a row for each load and peer: the untuned pool, its best fixed size, and the ratios."""
    rows = []
    labels = {peer.name: peer.label for peer, _ in answers.plan.cells}
    for load in dict.fromkeys(variant["load"] for _, variant in answers.plan.cells):
        stock = best(answers, "stdlib", load)
        for peer, label in labels.items():
            if any(asked.name == peer and variant["load"] == load for asked, variant in answers.plan.cells):
                rows.append([load, label, *_figures(answers, peer, load, stock)])
    return HEADERS, rows


def _figures(answers: report.Answers, peer: str, load: str, stock: Best | None) -> list[str]:
    untuned = cell(load, UNTUNED)
    outcomes = [found for found in answers.outcomes if found.peer == peer and found.variant.get("load") == load]
    if not any(found.status == "ok" for found in outcomes):
        return [report.reason_of(outcomes[0])] if outcomes else ["not asked yet"]
    ms, threads, spent = (answers.figure(peer, untuned, column) for column in (MS, THREADS, THREAD_SECONDS))
    size = best(answers, peer, load)
    texts: list[Any] = [report.shown(ms, MS), report.shown(threads, THREADS), report.shown(spent, THREAD_SECONDS)]
    texts += [str(size.threads), f"{size.ms:.1f}", f"{size.thread_seconds:.2f}"] if size else ["-"] * 3
    texts.append(_over(ms.value, size.ms) if ms and size else "-")
    texts.append(_over(spent.value, size.thread_seconds) if spent and size else "-")
    texts.append(_over(ms.value, stock.ms) if ms and stock else "-")
    return texts
