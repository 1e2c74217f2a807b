"""What is counted, what was counted when the figures were written, and how much more there may be."""

from __future__ import annotations

import json
import platform
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Load(NamedTuple):
    """One of the loads.

    Attributes:
        label: What is counted.
        count: How often. The load is counted once, and once with twice that: the difference is free of what does not
            depend on the number.
        tolerance: How much more it may take, as a share: somewhat more than it differs from run to run on a busy
            machine.
    """

    label: str
    count: int
    tolerance: float


LOADS = {
    "submit": Load("submit, run, collect", 2_000, 0.03),
    "round_trip": Load("submit one, wait for it", 1_000, 0.05),
    "run": Load("await pool.run(...)", 1_000, 0.03),
    "gather": Load("the same, gathered", 2_000, 0.03),
    "map": Load("map, an item", 20_000, 0.03),
    "later": Load("submit_later", 300, 0.03),
    "http": Load("one HTTP request", 200, 0.03),
    "tcp": Load("one accepted TCP connection", 100, 0.03),
}
FLOORS = {
    "queue": Load("a worker on a SimpleQueue, without futures", 2_000, 0.0),
    "stock_submit": Load("the same with ThreadPoolExecutor", 2_000, 0.0),
    "locks": Load("two bare locks, there and back", 1_000, 0.0),
    "stock_round_trip": Load("the same with ThreadPoolExecutor", 1_000, 0.0),
    "bare_run": Load("await a bare thread on a SimpleQueue", 1_000, 0.0),
    "stock_run": Load("await loop.run_in_executor(ThreadPoolExecutor)", 1_000, 0.0),
}
"""What `--floors` counts beside some of the loads."""
ABOVE = {
    "submit": ("queue", "stock_submit"),
    "round_trip": ("locks", "stock_round_trip"),
    "run": ("bare_run", "stock_run"),
}
"""The floor of a load, and the standard library's way."""
WARM_UP = 100
KEPT = Path(__file__).parent / "figures.json"

Figures = dict[str, float]
"""Instructions for each load."""


def interpreter() -> str:
    """Return what decides how many instructions the same Python code takes: the interpreter and how it was built."""
    version = platform.python_version() + "t" * bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    parts = (sys.implementation.name, version, platform.machine(), *platform.libc_ver(), platform.python_compiler())
    return " ".join(filter(None, parts))


def kept() -> dict[str, dict[str, Figures]]:
    """Return the kept figures: for each interpreter, for each core."""
    found: dict[str, dict[str, Figures]] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    return found


def keep(core: str, figures: Mapping[str, float]) -> None:
    """Write the figures of one core in place of those that were kept for this interpreter."""
    found = kept()
    found.setdefault(interpreter(), {})[core] = {name: round(count) for name, count in figures.items()}
    KEPT.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def differences(totals: list[int], loads: Mapping[str, Load] = LOADS) -> Figures:
    """Return what one of each load takes.

    Args:
        totals: For each load three numbers: what came before it is counted, the load, and the load twice over.
        loads: The loads.
    """
    if len(totals) != 3 * len(loads):
        raise ValueError(f"{len(loads)} loads have {3 * len(loads)} pieces, not {len(totals)}")
    return {
        name: (totals[3 * place + 2] - totals[3 * place + 1]) / load.count
        for place, (name, load) in enumerate(loads.items())
    }


def above_floors(ours: Mapping[str, float], floors: Mapping[str, float]) -> list[str]:
    """Say of each load that has a floor how much of what the standard library adds to it is left."""
    lines = []
    for name, (floor, stock) in ABOVE.items():
        share = (ours[name] - floors[floor]) / (floors[stock] - floors[floor])
        lines.append(
            f"{LOADS[name].label}: {ours[name]:,.0f} instructions; {FLOORS[floor].label}: {floors[floor]:,.0f}; "
            f"{FLOORS[stock].label}: {floors[stock]:,.0f}; {share:.2f} of what that adds is left"
        )
    return lines


@dataclass(frozen=True, slots=True)
class Verdict:
    """One load's count, and the one that was kept, if there is one."""

    load: str
    count: float
    before: float | None

    @property
    def change(self) -> float:
        """How much more it is, as a share of what it was; 0 where nothing is kept."""
        return self.count / self.before - 1 if self.before else 0.0

    @property
    def exceeds(self) -> bool:
        return self.change > LOADS[self.load].tolerance

    def __str__(self) -> str:
        text = f"{LOADS[self.load].label}: {self.count:,.0f} instructions"
        return f"{text}, {self.change:+.1%} of {self.before:,.0f}" if self.before else text


def judge(figures: Mapping[str, float], before: Mapping[str, float]) -> list[Verdict]:
    """Hold figures against those that were kept."""
    return [Verdict(name, count, before.get(name)) for name, count in figures.items()]
