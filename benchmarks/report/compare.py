"""What moved between two runs: a figure whose ratio, new to old, is beyond the noise of both runs together."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.engine.results import Noise, Run, text_of


class Change(NamedTuple):
    """One figure in two runs: the new over the old, with its 95% interval."""

    text: str
    ours: bool
    more: bool
    old: float
    new: float
    ratio: float
    low: float
    high: float

    @property
    def moved(self) -> bool:
        return self.low > 1 or self.high < 1

    @property
    def better(self) -> bool:
        return (self.new > self.old) is self.more


def changes(old: Run, new: Run) -> Iterator[Change]:
    """Yield each figure that both runs have and of which one has several rounds, by which noise can be seen."""
    for name, answers in new.answers.items():
        before = old.answers.get(name)
        for column in answers.question.columns if before else ():
            assert before is not None
            pairs = [
                (peer, variant, before.figure(peer.name, variant, column), answers.figure(peer.name, variant, column))
                for peer, variant, _ in answers.cells
            ]
            noise = Noise.of(figure for *_, was, now in pairs for figure in (was, now))
            for peer, variant, was, now in pairs:
                if was and now and was.value > 0 and now.value > 0 and noise.freedom and not column.worst:
                    ratio = now.value / was.value
                    low, high = noise.interval(ratio, len(now.by_round), len(was.by_round))
                    text = f"{name} {text_of(variant)}, {peer.label}: {column.label}"
                    yield Change(text, peer.side == "ours", column.more, was.value, now.value, ratio, low, high)


def told(old: Run, new: Run) -> list[str]:
    """Return what there is to say about two runs, line by line."""
    lines = [f"old: {old.told()}", f"new: {new.told()}"]
    for fact in ("python", "processor", "processors", "gil"):
        was, now = (run.document["machine"].get(fact) for run in (old, new))
        if was != now:
            lines.append(f"not the same {fact}: {was} and {now}")
    found = list(changes(old, new))
    moved = sorted((change for change in found if change.moved), key=lambda change: change.ratio)
    lines.append(
        f"{len(found)} figures in both runs with rounds to judge by; {len(moved)} moved beyond the noise, where "
        f"{len(found) * 0.05:.0f} would by chance"
    )
    # What differs from one run to the next, such as a warmer processor, is in the rounds of neither.
    worse = [1 / change.ratio if change.more else change.ratio for change in found if not change.ours]
    if worse:
        lines.append(f"what is not ebbpool got worse {statistics.median(worse):.3f} times, by the median: the machine")
    for change in moved:
        lines.append(
            f"{'better' if change.better else 'WORSE '} {change.ratio:6.3f} ({change.low:.3f} to {change.high:.3f})  "
            f"{change.text} {change.old:.4g} -> {change.new:.4g}"
        )
    return lines
