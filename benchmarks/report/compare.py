"""What is noise and what is not: the ratio of two figures with its interval, and what moved between two runs.

The unit is the round: each is a process of its own, and the median of its samples is one observation. Two figures are
compared by Welch's t-test on the logarithms of these medians, so that "twice" and "half" count alike; the interval is
the 95% one of their ratio. Of all that is compared between two runs, what "moved" is picked by Benjamini and Hochberg's
procedure: at most 5% of what it names are expected to be chance. A single round leaves no noise to be seen, and nothing
is judged then. Noise from one run to the next, such as a machine that is warmer or busier, is not in the rounds of
either: how far the others moved, beside ours, tells that.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.report.store import Run

LEVEL = 0.05
"""The share of errors that is put up with: 95% intervals, 5% false discoveries."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times another figure one is, the interval of that, and the p of there being no difference."""

    value: float
    low: float
    high: float
    p: float


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function, by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1.0 / ((1.0 - (a + b) * x / (a + 1.0)) or tiny)
    found = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for step in (even, odd):
            d = 1.0 / ((1.0 + step * d) or tiny)
            c = (1.0 + step / c) or tiny
            found *= c * d
        if abs(c * d - 1.0) < 1e-12:
            break
    return found


def two_sided(t: float, freedom: float) -> float:
    """Return the probability that Student's t, of so many degrees of freedom, is as far from 0 as `t`, or farther."""
    a, b, x = freedom / 2, 0.5, freedom / (freedom + t * t)
    if x >= 1.0:
        return 1.0
    scale = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )  # fmt: skip
    if x < (a + 1) / (a + b + 2):
        return scale * _beta_fraction(a, b, x) / a
    return 1.0 - scale * _beta_fraction(b, a, 1.0 - x) / b


def quantile(freedom: float, outside: float = LEVEL) -> float:
    """Return the t beyond which, on both sides together, the share `outside` lies."""
    low, high = 0.0, 1.0
    while two_sided(high, freedom) > outside:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, freedom) > outside else (low, middle)
    return high


def ratio_of(own: Sequence[float], other: Sequence[float]) -> Ratio | None:
    """Return how many times `other` the figures `own` are, one a round; None if that cannot be told from noise.

    Figures that are the same in each round are compared as they are.
    """
    if min(len(own), len(other)) < 2 or min(*own, *other) <= 0:
        return None
    logs = [[math.log(value) for value in side] for side in (own, other)]
    value = statistics.median(own) / statistics.median(other)
    middle = statistics.fmean(logs[0]) - statistics.fmean(logs[1])
    shares = [statistics.variance(side) / len(side) for side in logs]
    if sum(shares) < 1e-24:
        return Ratio(value, value, value, 0.0 if abs(middle) > 1e-9 else 1.0)
    freedom = sum(shares) ** 2 / sum(share**2 / (len(side) - 1) for share, side in zip(shares, logs, strict=True))
    error = math.sqrt(sum(shares))
    reach = quantile(freedom) * error
    return Ratio(value, math.exp(middle - reach), math.exp(middle + reach), two_sided(middle / error, freedom))


@dataclass(frozen=True, slots=True)
class Noise:
    """How far rounds are from each other, over all cells of a question: a few rounds of one cell tell too little.

    Attributes:
        deviation: the standard deviation of the logarithms within a cell.
        freedom: from how many differences that is known.
    """

    deviation: float
    freedom: int

    @classmethod
    def of(cls, cells: Iterable[Sequence[float]]) -> Noise | None:
        """Return what the rounds of some cells tell; None if each has one round."""
        squares, freedom = 0.0, 0
        for rounds in cells:
            if len(rounds) > 1 and min(rounds) > 0:
                logs = [math.log(value) for value in rounds]
                squares += statistics.variance(logs) * (len(logs) - 1)
                freedom += len(logs) - 1
        return cls(math.sqrt(squares / freedom), freedom) if freedom else None

    def interval(self, ratio: float, own: int, other: int) -> tuple[float, float]:
        """Return the 95% interval of the ratio of two figures, the medians of so many rounds."""
        reach = quantile(self.freedom) * self.deviation * math.sqrt(1 / own + 1 / other)
        return ratio * math.exp(-reach), ratio * math.exp(reach)


@dataclass(frozen=True, slots=True)
class Change:
    """One figure in two runs.

    Attributes:
        ratio: the new over the old; None where noise cannot be told, or nothing can be divided.
        more: more is better.
        moved: whether that is beyond the noise.
    """

    question: str
    variant: str
    peer: str
    ours: bool
    label: str
    old: float
    new: float
    ratio: Ratio | None
    more: bool
    moved: bool = False

    @property
    def better(self) -> bool:
        return (self.new > self.old) is self.more


def discoveries(ps: Sequence[float], level: float = LEVEL) -> float:
    """Return the largest p that counts as a discovery (Benjamini and Hochberg), -1 if none does."""
    found = -1.0
    for rank, p in enumerate(sorted(ps), 1):
        if p <= rank / len(ps) * level:
            found = p
    return found


def changes(old: Run, new: Run) -> list[Change]:
    """Return each figure that both runs have, what moved marked."""
    found = list(_pairs(old, new))
    limit = discoveries([change.ratio.p for change in found if change.ratio])
    return [replace(change, moved=change.ratio is not None and change.ratio.p <= limit) for change in found]


def _pairs(old: Run, new: Run) -> Iterator[Change]:
    for name, answers in new.answers.items():
        before = old.answers.get(name)
        if before is None:
            continue
        for peer, variant in answers.plan.cells:
            for column in answers.question.columns:
                figures = [side.figure(peer.name, variant, column) for side in (before, answers)]
                if figures[0] is None or figures[1] is None:
                    continue
                was, now = figures[0], figures[1]
                rounds = [list(now.by_round.values()), list(was.by_round.values())]
                where = " ".join(f"{key}={value}" for key, value in variant.items())
                yield Change(
                    name, where, peer.label, peer.side == "ours", column.label, was.value, now.value,
                    None if column.worst else ratio_of(*rounds), column.more,
                )  # fmt: skip


def told(old: Run, new: Run, number: Callable[[float], str] = "{:.4g}".format) -> list[str]:
    """Return what there is to say about two runs, line by line."""
    found = changes(old, new)
    lines = [f"old: {old.told()}", f"new: {new.told()}"]
    for name in ("python", "processor", "processors", "gil"):
        if old.machine.get(name) != new.machine.get(name):
            lines.append(f"not the same {name}: {old.machine.get(name)} and {new.machine.get(name)}")
    judged = [(change, change.ratio) for change in found if change.ratio]
    moved = sorted(((change, ratio) for change, ratio in judged if change.moved), key=lambda pair: pair[1].value)
    lines.append(
        f"{len(found)} figures in both runs, {len(judged)} of them with rounds to judge by; {len(moved)} moved beyond "
        f"the noise (at most {LEVEL:.0%} of these by chance)"
    )
    worse = [1 / ratio.value if change.more else ratio.value for change, ratio in judged if not change.ours]
    if worse:
        lines.append(f"what is not ebbpool got worse {statistics.median(worse):.3f} times, by the median: the machine")
    for change, ratio in moved:
        lines.append(
            f"{'better' if change.better else 'WORSE '} {ratio.value:6.3f} ({ratio.low:.3f} to {ratio.high:.3f})  "
            f"{change.question} {change.variant}, {change.peer}: {change.label} "
            f"{number(change.old)} -> {number(change.new)}"
        )
    lines += [
        f"was 0, is now {number(change.new)}: {change.question} {change.variant}, {change.peer}: {change.label}"
        for change in found
        if change.ours and not change.old and change.new and not change.more
    ]
    return lines
