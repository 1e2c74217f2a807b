"""Runs the cells of a question: each in a fresh process, the peers in turn, round by round."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.engine import cell
from benchmarks.engine.model import ROOT, Question, Samples, Settings, Variant
from benchmarks.peers.peer import Peer
from benchmarks.peers.table import PEERS

TIMEOUT_SECONDS = 120.0
_TAIL_LINES = 12


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one cell.

    Attributes:
        status: "ok", "missing" (not installed), "n/a" (makes no sense), "skipped" (cannot change the answer any more),
            "failed" or "timeout".
        reason: why there are no samples; of a failure, the end of what it wrote to stderr.
        seconds: what asking took.
    """

    peer: str
    variant: Variant
    round: int
    status: str
    reason: str = ""
    samples: Samples = field(default_factory=dict)
    version: str = ""
    gil: bool | None = None
    seconds: float = 0.0

    @property
    def broken(self) -> bool:
        return self.status in ("failed", "timeout")


def pinning_available() -> bool:
    return hasattr(os, "sched_setaffinity")


def processors() -> list[int]:
    """The processors this process may run on."""
    return sorted(os.sched_getaffinity(0)) if pinning_available() else list(range(os.cpu_count() or 1))


def _environment(peer: Peer) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "EBBPOOL_PURE"}
    return kept | peer.env


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-_TAIL_LINES:])


def run_cell(question: Question, peer: Peer, params: dict[str, Any], pin: int | None, timeout: float) -> dict[str, Any]:
    """Measures in a fresh process; returns the fields of an Outcome that the process decides."""
    spec = {"module": question.module, "peer": peer.name, "params": params, "pin": pin}
    command = [sys.executable, "-m", cell.__name__, json.dumps(spec)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=_environment(peer), capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired as expired:
        stderr: Any = expired.stderr or b""
        tail = _tail(stderr.decode(errors="replace") if isinstance(stderr, bytes) else stderr)
        return {"status": "timeout", "reason": f"no end after {timeout:g} s\n{tail}".strip()}
    lines = [line for line in done.stdout.splitlines() if line.startswith(cell.MARK)]
    if done.returncode or not lines:
        return {"status": "failed", "reason": f"exit status {done.returncode}\n{_tail(done.stderr)}".strip()}
    answer: dict[str, Any] = json.loads(lines[-1].removeprefix(cell.MARK))
    return answer


@dataclass(frozen=True, slots=True)
class Plan:
    """All cells of one question, and the peers it is not asked of."""

    question: Question
    sizes: dict[str, Any]
    cells: list[tuple[Peer, Variant]]
    inapplicable: list[Outcome]
    rounds: int

    @classmethod
    def of(cls, question: Question, settings: Settings) -> Plan:
        cells: list[tuple[Peer, Variant]] = []
        inapplicable = []
        for peer in PEERS:
            if settings.peers and peer.name not in settings.peers:
                continue
            chosen = question.chosen(peer, settings)
            if isinstance(chosen, str):
                inapplicable.append(Outcome(peer.name, {}, 0, "n/a", chosen))
            else:
                cells += [(peer, variant) for variant in chosen]
                if settings.beside and peer.core is not None:
                    other = peer.of_checkout(Path(settings.beside))
                    cells += [(other, variant) for variant in chosen]
        return cls(question, question.sizes(settings.quick), cells, inapplicable, question.rounds(settings))

    def order(self, number: int) -> list[tuple[Peer, Variant]]:
        """The cells of round `number`; who comes first moves on with the rounds, and neighbours change places."""
        start = number * max(1, len(self.cells) // max(1, self.rounds)) % max(1, len(self.cells))
        cells = self.cells[::-1] if number % 2 else self.cells
        by_variant = sorted(cells, key=lambda cell: self.question.order(cell[1]))
        return by_variant[start:] + by_variant[:start]


def ask(
    plan: Plan,
    settings: Settings,
    number: int,
    before: Sequence[Outcome],
    announce: Callable[[str], None],
    timeout: float = TIMEOUT_SECONDS,
) -> list[Outcome]:
    """Return the outcomes of round `number`, from 0; what was missing before, or out of time, is not asked again.

    The plain core is asked in the first round alone: it is there to be known, and its noise is the compiled core's.
    """
    given_up = {(found.peer, json.dumps(found.variant)) for found in before if found.status in ("missing", "timeout")}
    compiled = any(peer.core for peer, _ in plan.cells)
    outcomes: list[Outcome] = []
    for peer, variant in plan.order(number):
        shown = " ".join(f"{name}={value}" for name, value in variant.items())
        announce(f"{plan.question.name} round {number + 1}/{plan.rounds} {peer.name} {shown}")
        plain = compiled and peer.core is False
        if (peer.name, json.dumps(variant)) in given_up or (plain and number and not settings.peers):
            continue
        start = time.monotonic()
        if reason := plan.question.skip([*before, *outcomes], peer, variant):
            answer: dict[str, Any] = {"status": "skipped", "reason": reason}
        else:
            answer = run_cell(plan.question, peer, plan.sizes | variant, settings.pin, timeout)
        spent = time.monotonic() - start
        outcomes.append(Outcome(peer=peer.name, variant=variant, round=number + 1, seconds=spent, **answer))
    return outcomes


def run(
    plans: Sequence[Plan],
    settings: Settings,
    announce: Callable[[str], None],
    timeout: float = TIMEOUT_SECONDS,
    seconds: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[Plan, list[Outcome]]]:
    """Yield each plan with all its outcomes so far, after each of its rounds.

    Every question has its first round before any has its second: what changes in the machine meanwhile is then part of
    the noise that is seen. A round that would end after `seconds` is left out, unless it is the first.
    """
    begun = clock()
    found: dict[str, list[Outcome]] = {plan.question.name: list(plan.inapplicable) for plan in plans}
    took: dict[str, float] = {}
    for number in range(max((plan.rounds for plan in plans), default=0)):
        for plan in plans:
            name = plan.question.name
            if number >= plan.rounds or (number and clock() - begun + took[name] > seconds):
                continue
            start = clock()
            found[name] += ask(plan, settings, number, found[name], announce, timeout)
            took[name] = clock() - start
            yield plan, found[name]
