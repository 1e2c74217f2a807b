"""Turns outcomes into figures, verdicts on targets, contests with the rivals, and tables."""

from __future__ import annotations

import importlib
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.engine.cell import gil_enabled
from benchmarks.engine.model import Column, Question, Settings, Target, Variant
from benchmarks.engine.runner import Outcome, Plan
from benchmarks.peers.peer import Peer
from benchmarks.peers.table import BY_NAME, PEERS
from benchmarks.report.compare import Noise

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
        target: what was to be reached.
        peer: the label of who was to reach it.
        where: the variant, as text.
        verdict: "holds", "MISSED", "within the noise" (missed by the median, but not in every round),
            "not asked" or "not measured".
        measured: the figure, or why there is none.
    """

    question: str
    target: str
    peer: str
    where: str
    verdict: str
    measured: str


@dataclass(frozen=True, slots=True)
class Side:
    """Who stands for one side of a contest, and the figure."""

    label: str
    figure: Figure


@dataclass(frozen=True, slots=True)
class Contest:
    """The best of ours beside the best rival, under one variant, by one column.

    Attributes:
        ratio: how many times better ours is: below 1 the rival is ahead.
        low, high: the 95% interval of that; both are the ratio where one round leaves no noise to be seen.
        floor: the best floor or ceiling, if there is one.
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
    def winner(self) -> str:
        """Return the label of who is ahead, or "" if that is within the noise."""
        return self.ours.label if self.low > 1 else self.rival.label if self.high < 1 else ""


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

    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        outcomes: Sequence[Outcome],
        gil: bool | None = None,
        verdicts: Sequence[Verdict] | None = None,
    ) -> None:
        self.plan, self.settings, self.outcomes = plan, settings, list(outcomes)
        self.question: Question = plan.question
        self.gil = gil_enabled() if gil is None else gil
        self.peers = {peer.name: peer for peer, _ in plan.cells}
        self._verdicts = verdicts

    def variants(self) -> list[Variant]:
        """Return each variant once, small numbers first."""
        named = {key(variant): variant for _, variant in self.plan.cells}
        return [variant for _, variant in sorted(named.items(), key=_natural)]

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

    def _column(self, metric: str) -> Column:
        return next(column for column in self.question.columns if column.metric == metric)

    def _judge(self, target: Target) -> tuple[str, str]:
        if target.pinned is not None and target.pinned != (self.settings.pin is not None):
            return ("not asked", f"only of a run {'with' if target.pinned else 'without'} --pin")
        if target.gil is not None and target.gil != self.gil:
            return ("not asked", f"only {'with' if target.gil else 'without'} a GIL")
        column = self._column(target.metric)
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
        rival = self.figure(target.rival, where, self._column(target.rival_metric or target.metric))
        if rival is None or not rival.value:
            return ("not measured", f"no figure of {target.rival}")
        remark = ""
        if target.above is not None:
            under = target.where if target.above_where is None else target.above_where
            floor = self.figure(target.above, under, column)
            if floor is None:
                return ("not measured", f"no figure of {target.above}")
            own, rival = above(own, floor), above(rival, floor)
            if rival.value <= 0:
                return ("not measured", f"{target.rival} is not above {target.above}")
            below = sum(value <= 0 for value in own.by_round.values())
            remark = f"{below} of {len(own.by_round)} rounds not above {target.above}" if below else ""
            if own.value <= 0:
                # A share of nothing, or of less, would say that the target is more than reached.
                return ("within the noise", f"no share: {remark}")
        share = own.value / rival.value
        shares = [
            value / rival.by_round[n]
            for n, value in own.by_round.items()
            if rival.by_round.get(n, 0.0) > 0 and (value > 0 or target.above is None)
        ]
        low, high = min(shares, default=share), max(shares, default=share)
        text = (
            f"{share:.3f} of it ({low:.3f} to {high:.3f} by round), {1 / share:.2f}x" if share > 0 else f"{share:.3f}"
        )
        text += f"; {remark}" if remark else ""
        if holds(share):
            return ("holds", text)
        return ("within the noise" if holds(high if column.more else low) else "MISSED", text)

    def verdicts(self) -> list[Verdict]:
        """Return what became of each target; of a run that was read from a file, what that says."""
        if self._verdicts is not None:
            return list(self._verdicts)
        asked = [(peer.name, variant) for peer, variant in self.plan.cells]
        return [
            Verdict(
                self.question.name, target.text, self.peers[target.peer].label, key(target.where), *self._judge(target)
            )
            for target in (*self.question.targets(self.settings), *self.question.found_targets(self))
            if (target.peer, target.where) in asked
        ]

    def contests(self) -> list[Contest]:
        """Return the best of ours beside the best rival, for each variant and each column that is to be compared."""
        if self.question.contests is not None:
            return list(self.question.contests(self))
        found = []
        noise = {column.metric: self._noise(column) for column in self.question.columns}
        for variant in self.variants():
            for column in self.question.columns:
                if column.ratio:
                    sides = {side: self._best(variant, column, side) for side in ("ours", "rival", "floor")}
                    found_noise = noise[column.metric]
                    contest = contest_of(variant, column, sides["ours"], sides["rival"], sides["floor"], found_noise)
                    found += [contest] if contest else []
        return found

    def _noise(self, column: Column) -> Noise | None:
        figures = (self.figure(peer.name, variant, column) for peer, variant in self.plan.cells)
        return Noise.of(list(figure.by_round.values()) for figure in figures if figure is not None)

    def _best(self, variant: Variant, column: Column, side: str) -> Side | None:
        found = []
        for peer in self.peers.values():
            figure = self.figure(peer.name, variant, column)
            if figure is not None and peer.side == side:
                found.append((Side(peer.label, figure), peer))
        if any(peer.core for _, peer in found):
            # The plain core is what there is where nothing is compiled: it takes part only there.
            found = [(best, peer) for best, peer in found if peer.core]
        values = [best for best, _ in found]
        if not values:
            return None
        return (max if column.more else min)(values, key=lambda best: best.figure.value)


def above(figure: Figure, floor: Figure) -> Figure:
    """Return what is left of a figure without that of a floor, round by round."""
    rounds = {
        number: value - floor.by_round[number] for number, value in figure.by_round.items() if number in floor.by_round
    }
    middle = statistics.median(rounds.values()) if rounds else figure.value - floor.value
    return Figure(middle, min(rounds.values(), default=middle), max(rounds.values(), default=middle), rounds)


def contest_of(
    variant: Variant,
    column: Column,
    ours: Side | None,
    rival: Side | None,
    floor: Side | None = None,
    noise: Noise | None = None,
) -> Contest | None:
    """Return the contest of two sides, or None if one is missing or has nothing to divide by.

    Without any noise to go by, who is ahead is by the figures alone.
    """
    if ours is None or rival is None or not ours.figure.value or not rival.figure.value:
        return None
    better, worse = (ours, rival) if column.more else (rival, ours)
    ratio = better.figure.value / worse.figure.value
    low = high = ratio
    if not column.worst and noise is not None:
        low, high = noise.interval(ratio, len(better.figure.by_round), len(worse.figure.by_round))
    return Contest(variant, column, ours, rival, ratio, low, high, floor)


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
    for variant in answers.variants():
        for peer in sorted(answers.peers.values(), key=_place):
            outcomes = answers.of(peer.name, variant)
            if not outcomes:
                continue
            row = [key(variant), peer.label]
            if not any(outcome.status == "ok" for outcome in outcomes):
                rows.append([*row, reason_of(outcomes[0])])
                continue
            for column in question.columns:
                row.append(shown(answers.figure(peer.name, variant, column), column))
                if column.ratio:
                    ratio = answers.ratio(peer.name, variant, column)
                    row.append("-" if ratio is None else f"{ratio:.2f}")
            rows.append(row)
    return Table(question.title, headers, rows, _notes(answers))


def _place(peer: Peer) -> int:
    return PEERS.index(peer) if peer in PEERS else len(PEERS)


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
        names = [BY_NAME[each.peer].label if each.peer in BY_NAME else each.peer for each in group]
        notes.append(f"{reason} ({', '.join(names) if len(names) <= _NAMED_AT_MOST else f'{len(names)} peers'})")
    switched = {found.peer for found in answers.outcomes if found.gil and not answers.gil}
    if switched:
        notes.append(f"the GIL was switched back on by importing: {', '.join(sorted(switched))}")
    for outcome in answers.broken:
        where = f"{outcome.peer} {key(outcome.variant)}, round {outcome.round}"
        notes.append(f"{outcome.status.upper()} {where}: {outcome.reason}")
    return notes


def target_table(verdicts: Sequence[Verdict], quick: bool) -> Table:
    rows = [[each.question, each.where, each.peer, each.target, each.measured, each.verdict] for each in verdicts]
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
