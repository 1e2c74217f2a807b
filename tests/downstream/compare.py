"""What became of a suite's tests stock and with ebbpool, and what of that is ebbpool's doing."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from suites import Expected, Suite

EMPTY = 5
"""pytest's exit status for a run in which no test was collected or chosen."""

COLLECTION = " (collection)"
"""Ends the name of what could not be imported; see `put_in.py`."""


@dataclass
class Side:
    """One run of a suite.

    Attributes:
        outcome: Tests, by pytest's id, and what became of them: passed, failed, skipped, or died.
        text: Tests that failed, and what they failed of.
        calls: Calls that pools of ebbpool's took on during a test; tests without calls are left out.
        total: Calls that pools of ebbpool's took on.
        strangers: Worker threads of anyio's, and loops' default executors of the standard library's, that were made.
        broken: Why the run cannot be relied on as a whole; empty if it can.
        seconds: How long it took.
        log: What pytest wrote.
    """

    log: Path
    outcome: dict[str, str] = field(default_factory=dict)
    text: dict[str, str] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    total: int = 0
    strangers: int = 0
    broken: str = ""
    seconds: float = 0.0

    def read(self, record: Path, ending: str) -> None:
        """Read what `put_in.py` wrote; `ending` says how the process ended."""
        lines = record.read_text("utf-8").splitlines() if record.exists() else []
        running = None
        self.broken = f"pytest {ending}"
        for line in lines:
            entry = json.loads(line)
            if entry["event"] == "start":
                running = entry["test"]
            elif entry["event"] == "end":
                running = None
                self.add(entry["test"], entry["outcome"], entry["text"], entry["calls"])
            elif entry["status"] in (0, 1, EMPTY):
                self.broken = ""
                self.total, self.strangers = entry["calls"], entry["strangers"]
        if running is not None:
            self.add(running, "died", f"pytest {ending} while it ran; see {self.log}", 0)

    def add(self, test: str, outcome: str, text: str, calls: int) -> None:
        """Note what became of one test."""
        self.outcome[test] = outcome
        if text:
            self.text[test] = text
        if calls:
            self.calls[test] = calls

    def count(self, *outcomes: str) -> int:
        """Return how many tests ended in one of these ways."""
        return sum(outcome in outcomes for outcome in self.outcome.values())


@dataclass
class Comparison:
    """A suite's two runs side by side.

    Attributes:
        suite: The suite.
        stock: The run without ebbpool.
        ours: The run with ebbpool.
        not_ours: Tests that fail on both sides.
        only_stock: Tests that fail stock and pass with ebbpool.
        expected: Differences that the table has, each with its reason.
        unexplained: Tests that pass stock and do not pass with ebbpool, each with what happened.
        problems: What is wrong with the suite as a whole.
        reached: Variants of the tests, and how many calls of theirs reached a pool of ebbpool's.
    """

    suite: Suite
    stock: Side
    ours: Side
    not_ours: list[str] = field(default_factory=list)
    only_stock: list[str] = field(default_factory=list)
    expected: dict[str, str] = field(default_factory=dict)
    unexplained: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    reached: Counter[str] = field(default_factory=Counter)

    @property
    def failed(self) -> bool:
        """Whether something is unexplained."""
        return bool(self.unexplained or self.problems)


def variants_of(test: str) -> list[str]:
    """Return the parts of a parametrised test's id: ``test_x[asyncio-1]`` has asyncio and 1."""
    tail = test.partition("[")[2]
    return tail.removesuffix("]").split("-")


def matches(entry: Expected, suite: str, test: str) -> bool:
    """Tell whether an entry of the table is about a test of a suite."""
    return fnmatchcase(suite, entry.suites) and fnmatchcase(test, entry.pattern.replace("[", "[[]"))


def compare(suite: Suite, stock: Side, ours: Side, table: tuple[Expected, ...], *, whole: bool = True) -> Comparison:
    """Compare two runs; `whole` says that all of the suite was run, so that each variant can be asked for its calls."""
    result = Comparison(suite, stock, ours)
    for kind, side in (("stock", stock), ("with ebbpool", ours)):
        if side.broken:
            result.problems.append(f"{kind}, {side.broken}")
    for test, before in stock.outcome.items():
        after = ours.outcome.get(test, "missing")
        good = after in ("passed", before)
        if after == "missing" and ours.broken:
            continue
        if before == "failed" and test.endswith(COLLECTION):
            result.problems.append(f"{test} fails stock (is a package missing?): {stock.text[test].splitlines()[-1]}")
        elif before in ("failed", "died"):
            (result.only_stock if after == "passed" else result.not_ours).append(test)
        elif not good:
            reason = next((entry.reason for entry in table if matches(entry, suite.name, test)), None)
            if reason is not None and after == "failed":
                result.expected[test] = reason
            else:
                result.unexplained[test] = f"{before} stock, {after} with ebbpool\n{ours.text.get(test, '')}"
    for test, after in ours.outcome.items():
        if test not in stock.outcome and after != "passed":
            result.unexplained[test] = f"not there stock, {after} with ebbpool\n{ours.text.get(test, '')}"
    check_reached(result, whole)
    return result


def check_reached(result: Comparison, whole: bool) -> None:
    """Count the calls of each variant, and object where there are tests that pass and no calls."""
    present = set()
    for test, outcome in result.ours.outcome.items():
        for variant in {*variants_of(test)} & {*result.suite.variants}:
            result.reached[variant] += result.ours.calls.get(test, 0)
            if outcome == "passed":
                present.add(variant)
    if not whole:
        return
    if not result.ours.total:
        result.problems.append("no call reached a pool of ebbpool's")
    if result.ours.strangers:
        result.problems.append(f"{result.ours.strangers} threads or pools took the place of ebbpool's")
    for variant in sorted(present):
        if not result.reached[variant]:
            result.problems.append(f"no call of a test with {variant} reached a pool of ebbpool's")


def stale(table: tuple[Expected, ...], comparisons: list[Comparison]) -> list[str]:
    """Return what is no longer true of the entries on these suites, one line each."""
    lines = []
    for entry in table:
        for each in comparisons:
            name = each.suite.name
            if not fnmatchcase(name, entry.suites):
                continue
            here = [test for test in each.stock.outcome if matches(entry, name, test)]
            if not here:
                lines.append(f"{name}: {entry.pattern} matches no test")
            lines += [
                f"{name}: {entry.pattern} is about {test}, which passes"
                for test in here
                if each.stock.outcome[test] == each.ours.outcome.get(test) == "passed"
            ]
    return lines
