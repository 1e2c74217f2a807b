"""Turns outcomes into tables, verdicts on targets, and JSON."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import platform
import statistics
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine.cell import gil_enabled
from benchmarks.engine.model import GC_POLICY, Column, Question, Settings, Target, Variant
from benchmarks.engine.runner import Outcome, Plan, pinning_available, processors
from benchmarks.peers.table import BY_NAME, PEERS

_NAMED_AT_MOST = 8


@dataclass(frozen=True, slots=True)
class Figure:
    """One metric of one peer under one variant.

    Attributes:
        value: the median over rounds of each round's median; of a `worst` column the worst of all samples.
        low, high: the least and the most of the rounds' medians (of all samples, if `worst`).
        by_round: each round's median.
    """

    value: float
    low: float
    high: float
    by_round: dict[int, float]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a target holds.

    Attributes:
        question: its name.
        verdict: "holds", "MISSED", "within the noise" (missed by the median, but not in every round),
            "not asked" or "not measured".
        measured: the figure, or why there is none.
    """

    question: str
    target: Target
    verdict: str
    measured: str


@dataclass(frozen=True, slots=True)
class Table:
    """Figures as text; a row shorter than the headers ends in a remark."""

    title: str
    headers: list[str]
    rows: list[list[str]]
    notes: list[str]


def key(variant: Variant) -> str:
    return " ".join(f"{name}={value}" for name, value in variant.items())


class Answers:
    """The outcomes of one question, by peer and variant."""

    def __init__(self, plan: Plan, settings: Settings, outcomes: Sequence[Outcome]) -> None:
        self.plan, self.settings, self.outcomes = plan, settings, list(outcomes)
        self.question: Question = plan.question

    @property
    def broken(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.broken]

    def of(self, peer: str, variant: Variant) -> list[Outcome]:
        return [found for found in self.outcomes if found.peer == peer and found.variant == variant]

    def figure(self, peer: str, variant: Variant, column: Column) -> Figure | None:
        rounds = {
            outcome.round: outcome.samples[column.metric]
            for outcome in self.of(peer, variant)
            if outcome.samples.get(column.metric)
        }
        if not rounds:
            return None
        by_round = {number: statistics.median(samples) for number, samples in rounds.items()}
        middle = statistics.median(by_round.values())
        if not column.worst:
            return Figure(middle, min(by_round.values()), max(by_round.values()), by_round)
        samples = [sample for found in rounds.values() for sample in found]
        worst = min(samples) if column.more else max(samples)
        return Figure(worst, min(samples), max(samples), by_round)

    def baseline(self, variant: Variant) -> Variant | None:
        """The variant of the question's rival that `variant` is compared with."""
        known = [cell for peer, cell in self.plan.cells if peer.name == self.question.rival[0]]
        wanted = (self.question.baseline or variant).items()
        return max(known, key=lambda cell: len(wanted & cell.items()), default=None)

    def ratio(self, peer: str, variant: Variant, column: Column) -> float | None:
        """How many times better than the question's rival."""
        beside = self.baseline(variant)
        own, rival = self.figure(peer, variant, column), None
        if beside is not None:
            rival = self.figure(self.question.rival[0], beside, column)
        if own is None or rival is None:
            return None
        better, worse = (own.value, rival.value) if column.more else (rival.value, own.value)
        return better / worse if worse else None

    def _judge(self, target: Target) -> tuple[str, str]:
        if target.pinned is not None and target.pinned != (self.settings.pin is not None):
            return ("not asked", f"only of a run {'with' if target.pinned else 'without'} --pin")
        if target.gil is not None and target.gil != gil_enabled():
            return ("not asked", f"only {'with' if target.gil else 'without'} a GIL")
        column = next(column for column in self.question.columns if column.metric == target.metric)
        own = self.figure(target.peer, target.where, column)
        if own is None:
            return ("not measured", f"no figure of {target.peer}")

        def holds(value: float) -> bool:
            return value >= target.limit if column.more else value <= target.limit

        if target.rival is None:
            noisy = not column.worst and any(holds(value) for value in own.by_round.values())
            text = f"{own.value:.{column.digits}f}"
            return ("holds" if holds(own.value) else "within the noise" if noisy else "MISSED", text)
        where = target.where if target.rival_where is None else target.rival_where
        rival = self.figure(target.rival, where, column)
        if rival is None or not rival.value:
            return ("not measured", f"no figure of {target.rival}")
        share = own.value / rival.value
        shares = [own.by_round[n] / rival.by_round[n] for n in own.by_round if rival.by_round.get(n)]
        low, high = min(shares, default=share), max(shares, default=share)
        text = f"{share:.3f} of it ({low:.3f} to {high:.3f} by round), {1 / share:.2f}x" if share else "0"
        if holds(share):
            return ("holds", text)
        return ("within the noise" if holds(high if column.more else low) else "MISSED", text)

    def verdicts(self) -> list[Verdict]:
        asked = {peer.name for peer, _ in self.plan.cells}
        return [
            Verdict(self.question.name, target, *self._judge(target))
            for target in (*self.question.targets(self.settings), *self.question.found_targets(self))
            if target.peer in asked
        ]


def shown(figure: Figure | None, column: Column) -> str:
    """The figure as text, with the least and the most of its rounds."""
    if figure is None:
        return column.empty
    text = f"{figure.value:.{column.digits}f}"
    spread = f"{figure.low:.{column.digits}f}", f"{figure.high:.{column.digits}f}"
    return text if spread == (text, text) else f"{text} ({spread[0]} to {spread[1]})"


def table(answers: Answers) -> Table:
    """The figures of a question; a row or a note says why a peer has none."""
    question = answers.question
    if question.findings is not None:
        return Table(question.title, *question.findings(answers), _notes(answers))
    headers = ["variant", "peer"]
    for column in question.columns:
        headers += [column.label, question.rival[1]] if column.ratio else [column.label]
    rows = []
    for variant in sorted({key(variant): variant for _, variant in answers.plan.cells}.items(), key=_natural):
        for peer in PEERS:
            outcomes = answers.of(peer.name, variant[1])
            if not outcomes:
                continue
            row = [variant[0], peer.label]
            if not any(outcome.status == "ok" for outcome in outcomes):
                rows.append([*row, reason_of(outcomes[0])])
                continue
            for column in question.columns:
                row.append(shown(answers.figure(peer.name, variant[1], column), column))
                if column.ratio:
                    ratio = answers.ratio(peer.name, variant[1], column)
                    row.append("-" if ratio is None else f"{ratio:.2f}")
            rows.append(row)
    return Table(question.title, headers, rows, _notes(answers))


def _natural(named: tuple[str, Variant]) -> list[tuple[int, float, str]]:
    return [(0, value, "") if isinstance(value, (int, float)) else (1, 0, value) for value in named[1].values()]


def reason_of(outcome: Outcome) -> str:
    """Why there are no samples, in one line."""
    first = outcome.reason.splitlines()
    text = first[0] if outcome.status != "failed" or len(first) < 2 else first[-1]
    return text if outcome.status == "missing" else f"{outcome.status}: {text}"


def _notes(answers: Answers) -> list[str]:
    notes = [answers.question.method]
    for reason, group in itertools.groupby(sorted(answers.plan.inapplicable, key=reason_of), key=reason_of):
        labels = [BY_NAME[found.peer].label for found in group]
        notes.append(f"{reason} ({', '.join(labels) if len(labels) <= _NAMED_AT_MOST else f'{len(labels)} peers'})")
    switched = {found.peer for found in answers.outcomes if found.gil and not gil_enabled()}
    if switched:
        notes.append(f"the GIL was switched back on by importing: {', '.join(sorted(switched))}")
    for outcome in answers.broken:
        where = f"{outcome.peer} {key(outcome.variant)}, round {outcome.round}"
        notes.append(f"{outcome.status.upper()} {where}: {outcome.reason}")
    return notes


def target_table(verdicts: Sequence[Verdict], quick: bool) -> Table:
    rows = []
    for found in verdicts:
        target = found.target
        peer = BY_NAME[target.peer].label
        rows.append([found.question, key(target.where), peer, target.text, found.measured, found.verdict])
    notes = ["quick: sizes too small and rounds too few to judge by"] if quick else []
    return Table("Targets", ["question", "variant", "peer", "target", "measured", "verdict"], rows, notes)


def plain(found: Table) -> str:
    """The table as aligned text; a remark may run on."""
    full = [row for row in [found.headers, *found.rows] if len(row) == len(found.headers)]
    widths = [max(len(row[column]) for row in full) for column in range(len(found.headers))]
    heads = [row[:-1] for row in found.rows if len(row) < len(found.headers)]
    widths[:2] = [max([width, *(len(row[at]) for row in heads)]) for at, width in enumerate(widths[:2])]
    lines = [found.title, "=" * len(found.title)]
    for row in [found.headers, ["-" * width for width in widths], *found.rows]:
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip())
    return "\n".join([*lines, *(f"* {note}" for note in found.notes)]) + "\n"


def show(found: Table) -> None:
    """Prints a table to stdout, with rich if it is there and stdout is a terminal."""
    try:
        console = importlib.import_module("rich.console").Console(markup=False, highlight=False)
        rich_table = importlib.import_module("rich.table").Table
    except ImportError:
        console = None
    if console is None or not console.is_terminal:
        print(plain(found))
        return
    drawn = rich_table(title=found.title, title_justify="left", caption_justify="left")
    for header in found.headers:
        drawn.add_column(header, overflow="fold")
    previous = ""
    for row in found.rows:
        if previous and row[0] != previous:
            drawn.add_section()
        previous = row[0]
        ours = "verdict" not in found.headers and row[1].startswith("ebbpool")
        drawn.add_row(*row, style="red" if row[-1] == "MISSED" else "bold" if ours else None)
    console.print(drawn)
    for note in found.notes:
        console.print(f"* {note}", style="dim")
    console.print()


def load_average() -> float | None:
    """Tasks that wanted a processor over the last minute, where the system tells."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def busy() -> str:
    """A warning if others use this machine, or ""."""
    load = load_average()
    if load is None or load < 0.5 * len(processors()):
        return ""
    count = len(processors())
    return f"this machine is busy (load average {load:.1f} on {count} processors): the figures are noisy"


def machine() -> dict[str, Any]:
    """Facts without which the figures mean nothing."""
    model = ""
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "python": sys.version,
        "implementation": platform.python_implementation(),
        "free_threaded_build": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        "gil": gil_enabled(),
        "platform": platform.platform(),
        "processor": model,
        "cpu_count": os.cpu_count(),
        "processors": processors(),
        "load_average": load_average(),
    }


def versions(answers: Sequence[Answers]) -> dict[str, str]:
    """What ran, by peer; of a missing peer, why."""
    outcomes = [outcome for found in answers for outcome in found.outcomes]
    missing = {found.peer: found.reason for found in outcomes if found.status == "missing"}
    return missing | {found.peer: found.version for found in outcomes if found.version}


def core(answers: Sequence[Answers]) -> str:
    """Which of ebbpool's cores this run measured."""
    ran = {outcome.peer for found in answers for outcome in found.outcomes if outcome.status == "ok"}
    ours = [peer for peer in PEERS if peer.name in ran and peer.core is not None]
    return " and ".join(sorted({"compiled" if peer.core else "plain" for peer in ours})) or "none"


def pinned(settings: Settings, asked: bool) -> str:
    if settings.pin is not None:
        return f"every cell held to processor {settings.pin}"
    return "not available" if asked and not pinning_available() else "no"


def document(facts: dict[str, Any], settings: Settings, answers: Sequence[Answers], pin: str) -> dict[str, Any]:
    """The whole run as JSON: facts, raw samples, the very tables that were printed, verdicts."""
    return {
        "machine": facts,
        "settings": asdict(settings) | {"pinned": pin, "gc": GC_POLICY},
        "core": core(answers),
        "load_average_after": load_average(),
        "versions": versions(answers),
        "questions": {
            found.question.name: {
                "sizes": found.plan.sizes,
                "rounds": found.plan.rounds,
                "table": asdict(table(found)),
                "targets": [asdict(verdict) for verdict in found.verdicts()],
                "cells": [asdict(outcome) for outcome in found.outcomes],
            }
            for found in answers
        },
    }


def save(folder: Path, name: str, found: dict[str, Any], tables: Sequence[Table]) -> Path:
    """Writes the JSON, and the tables as text beside it; returns the path of the JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.txt").write_text("\n".join(plain(table) for table in tables), encoding="utf-8")
    path = folder / f"{name}.json"
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
