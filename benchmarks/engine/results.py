"""What a run says: figures, and who is ahead.

One rule for all of it. A round is a process of its own, and the median of its samples is one observation; a figure is
the median of these. The noise is how far the rounds of one cell are from each other, over all cells of a question, in
logarithms, so that "twice" and "half" count alike. It gives the 95% interval of the ratio of two figures; if that
includes 1, the difference is within the noise. With a single round no noise can be seen, and nobody is called ahead;
nor is anybody by a column of which the worst sample counts.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.engine.model import QUESTIONS, Column, Question, Variant, load_question, text_of
from benchmarks.engine.runner import FORMAT
from benchmarks.peers.peer import Peer
from benchmarks.peers.table import known, peer_named

_Z = statistics.NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, slots=True)
class Figure:
    """One metric of one peer under one variant.

    Attributes:
        value: The median of the rounds' medians; of a `worst` column the worst of all samples.
        low: The least of the rounds' medians (of all samples, if `worst`); `high` the most.
        by_round: Each round's median.
    """

    value: float
    low: float
    high: float
    by_round: Mapping[str, float]


def figure_of(samples: Mapping[str, Sequence[float]], column: Column) -> Figure | None:
    """Return the figure of some rounds, None if there are none."""
    by_round = {number: statistics.median(found) for number, found in samples.items() if found}
    if not by_round:
        return None
    values = list(by_round.values())
    if column.worst:
        values = [sample for found in samples.values() for sample in found]
    value = statistics.median(values) if not column.worst else min(values) if column.more else max(values)
    return Figure(value, min(values), max(values), by_round)


def _quantile(freedom: int) -> float:
    """Return Student's t beyond which, on both sides together, 5% lie: the first terms of its expansion."""
    z = _Z
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )


@dataclass(frozen=True, slots=True)
class Noise:
    """How far rounds are from each other.

    Attributes:
        deviation: The standard deviation of the logarithms within a cell.
        freedom: From how many differences that is known; 0 if there are none.
    """

    deviation: float = 0.0
    freedom: int = 0

    @classmethod
    def of(cls, cells: Iterable[Figure | None]) -> Noise:
        squares, freedom = 0.0, 0
        for cell in cells:
            rounds = list(cell.by_round.values()) if cell else []
            if len(rounds) > 1 and min(rounds) > 0:
                logs = [math.log(value) for value in rounds]
                squares += statistics.variance(logs) * (len(logs) - 1)
                freedom += len(logs) - 1
        return cls(math.sqrt(squares / freedom), freedom) if freedom else cls()

    def interval(self, ratio: float, rounds: int, others: int) -> tuple[float, float]:
        """Return the 95% interval of the ratio of two medians of so many rounds each."""
        reach = _quantile(self.freedom) * self.deviation * math.sqrt(1 / rounds + 1 / others) if self.freedom else 0
        return ratio * math.exp(-reach), ratio * math.exp(reach)


class Side(NamedTuple):
    """Who stands for one side of a contest, and the figure."""

    label: str
    figure: Figure


class Contest(NamedTuple):
    """The best of ours beside the best rival, under one variant, by one column.

    Attributes:
        ratio: How many times better ours is: below 1 the rival is ahead; `low` and `high` are its 95% interval.
        floor: The best floor, if there is one.
    """

    variant: Variant
    column: Column
    ours: Side
    rival: Side
    ratio: float
    low: float
    high: float
    floor: Side | None

    @property
    def judged(self) -> bool:
        """Return whether there is an interval to judge by."""
        return self.low < self.high

    @property
    def winner(self) -> str:
        """Return the label of who is ahead, or "" if that is within the noise, or the noise is not known."""
        if not self.judged:
            return ""
        return self.ours.label if self.low > 1 else self.rival.label if self.high < 1 else ""


class Answers:
    """What a run says to one question.

    Args:
        question: The question.
        entry: What the run's JSON has under its name; cells of peers that are not known here are left out.
    """

    def __init__(self, question: Question, entry: Mapping[str, Any]) -> None:
        self.question = question
        self.cells: list[tuple[Peer, Variant, Mapping[str, Any]]] = [
            (peer_named(cell["peer"]), cell["variant"], cell) for cell in entry["cells"] if known(cell["peer"])
        ]
        self._cell = {(peer.name, text_of(variant)): cell for peer, variant, cell in self.cells}

    def figure(self, peer: str, variant: Variant, column: Column) -> Figure | None:
        cell = self._cell.get((peer, text_of(variant)), {})
        return figure_of(cell.get("samples", {}).get(column.metric, {}), column)

    def column(self, metric: str) -> Column:
        return next(column for column in self.question.columns if column.metric == metric)

    def noise(self, column: Column) -> Noise:
        """Return the noise of this question by one column."""
        return Noise() if column.worst else Noise.of(self.figure(p.name, v, column) for p, v, _ in self.cells)

    def broken(self) -> list[str]:
        """Return which cells failed or ran out of time, and which of ours did what they must not, and how."""
        found = []
        for peer, variant, cell in self.cells:
            where = f"{self.question.name} {peer.name} {text_of(variant)}"
            for number, status, reason in cell.get("without", []):
                if status in ("failed", "timeout"):
                    found.append(f"{status.upper()} {where}, round {number}: {reason}")
            for column in self.question.columns if peer.side == "ours" else ():
                figure = self.figure(peer.name, variant, column)
                if column.wrong and figure is not None and figure.high:
                    found.append(f"WRONG {where}: {figure.high:g} {column.label}")
        return found

    def _like(self, variant: Variant) -> Variant:
        return {key: value for key, value in variant.items() if key != self.question.free}

    def contests(self) -> list[Contest]:
        """Return the best of ours beside the best rival, for each variant and each column that is compared."""
        found = []
        variants = list({text_of(self._like(variant)): self._like(variant) for _, variant, _ in self.cells}.values())
        for variant in sorted(variants, key=_natural):
            for column in self.question.columns:
                ours, rival, floor = (self._best(variant, column, side) for side in ("ours", "rival", "floor"))
                if column.ratio and ours and rival and ours.figure.value and rival.figure.value:
                    times = self.times_better(ours.figure, rival.figure, column)
                    found.append(Contest(variant, column, ours, rival, *times, floor))
        return found

    def times_better(self, ours: Figure, rival: Figure, column: Column) -> tuple[float, float, float]:
        """Return how many times better a figure is than another, and the ends of the 95% interval of that."""
        better, worse = (ours, rival) if column.more else (rival, ours)
        ratio = better.value / worse.value
        return ratio, *self.noise(column).interval(ratio, len(better.by_round), len(worse.by_round))

    def _best(self, like: Variant, column: Column, side: str) -> Side | None:
        found = []
        for peer, variant, _ in self.cells:
            figure = self.figure(peer.name, variant, column)
            if peer.side == side and figure is not None and self._like(variant) == like:
                free = "" if side == "ours" else str(variant.get(self.question.free, ""))
                found.append((Side(f"{peer.label}({free})" if free else peer.label, figure), peer))
        if any(peer.core for _, peer in found):
            # The plain core is what there is where nothing is compiled: it takes part only there.
            found = [(best, peer) for best, peer in found if peer.core]
        if not found:
            return None
        return (max if column.more else min)((best for best, _ in found), key=lambda best: best.figure.value)


def _natural(variant: Variant) -> list[tuple[int, float, str]]:
    return [(0, value, "") if isinstance(value, (int, float)) else (1, 0, value) for value in variant.values()]


UNFIT = (
    "with PYTHONDONTWRITEBYTECODE set: without a GIL, threads fight over the constants of a module that was not loaded"
    " from a .pyc, and all figures are wrong"
)


class Run:
    """A run.

    Args:
        name: What it is called.
        document: Its JSON.

    Attributes:
        answers: What it says to each of its questions that is still asked, by name.
    """

    def __init__(self, name: str, document: Mapping[str, Any]) -> None:
        if document["format"] != FORMAT:
            raise ValueError(f"{name}: format {document['format']!r}; this programme reads format {FORMAT}")
        self.name, self.document = name, document
        self.answers = {
            question: Answers(load_question(question), entry)
            for question, entry in document["questions"].items()
            if question in QUESTIONS
        }

    def unfit(self) -> str:
        """Return why its figures must not be published; nothing if they may be."""
        facts = self.document["machine"]
        if "free-threading build" not in facts["python"] or facts.get("bytecode", True):
            return ""
        return f"{self.name} was taken {UNFIT}"

    def told(self) -> str:
        """Return in a line where and when it was taken."""
        facts, settings = self.document["machine"], self.document["settings"]
        python = f"{facts['implementation']} {facts['python'].split()[0]}{'' if facts['gil'] else ' without a GIL'}"
        model = f" ({facts['processor']})" if facts["processor"] else ""
        held = "" if settings["pin"] is None else ", every process held to one of them"
        quick = "; QUICK: one round of small sizes, not to be quoted" if settings["quick"] else ""
        when = f"{self.document['taken']}, commit {self.document['commit'] or 'unknown'}"
        return f"{python}, {len(facts['processors'])} CPUs{model}{held}, {when}{quick}"


def read(path: Path) -> dict[str, Run]:
    """Return the runs in a file, by name."""
    documents = json.loads(path.read_text(encoding="utf-8"))
    if "format" in documents:
        raise ValueError(f"{path}: a run without a name; this programme reads files that have runs by name")
    return {name: Run(name, document) for name, document in documents.items()}
