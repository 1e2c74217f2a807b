"""What was seen: threads and processor time of the server, latencies of the requests."""

from __future__ import annotations

import asyncio
import bisect
import math
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from .control import Child
from .plan import Kind, Phase

EVERY = 0.05
"""Seconds between two samples."""


class Sample(NamedTuple):
    """The server at one moment."""

    at: float
    """Seconds; on the parent's monotonic clock at first, from the start of the load in a `Run`."""
    threads: int
    """Threads besides the event loop's own."""
    cpu: float
    """Processor seconds used so far."""


class Outcome(NamedTuple):
    """What came of one request; times in seconds from the start of the load."""

    phase: Phase
    kind: Kind
    due: float
    sent: float
    done: float
    late: float
    """How much later than it could the load generator sent it."""
    problem: str
    """Empty if the answer was right."""

    @property
    def latency(self) -> float:
        """Seconds from when the request was due until it was answered."""
        return self.done - self.due


@dataclass(frozen=True)
class Run:
    """One pool under the load."""

    name: str
    max_workers: int
    outcomes: list[Outcome]
    samples: list[Sample]
    load_cpu: float
    """Processor seconds of the load generator."""
    peak_memory: int | None
    """Most bytes of memory the server ever held; None where the system does not tell."""


@dataclass(frozen=True)
class Summary:
    """One column of the table. Times in seconds."""

    requests: int
    problems: int
    rate: float
    """Right answers per second of load: to the last steady answer, plus from the burst to its last."""
    burst: float
    """From the burst until its last answer."""
    p50: float
    p99: float
    kinds: dict[str, tuple[float, float]]
    """Median and 99th percentile of each kind of request in the steady phase."""
    burst_search: tuple[float, float]
    """The same for the searches of the burst."""
    peak_threads: int
    threads_after: int
    watched: float
    """How long after the last answer `threads_after` was counted."""
    cpu: float
    peak_memory: int | None
    late: float
    """The most by which the load generator itself sent a request later than it could have."""


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile of ``values``; not a number if there are none.

    Args:
        values: In any order.
        share: 0 to 1; 0.99 for the 99th percentile.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share must be between 0 and 1, not {share!r}")
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def in_flight(outcomes: Sequence[Outcome], times: Sequence[float]) -> list[int]:
    """Return for each time how many requests were due and not yet answered."""
    due = sorted(outcome.due for outcome in outcomes)
    done = sorted(outcome.done for outcome in outcomes)
    return [bisect.bisect_right(due, at) - bisect.bisect_right(done, at) for at in times]


def arrivals(outcomes: Sequence[Outcome], end: float, width: float) -> tuple[list[float], list[float]]:
    """Return the edges of slots of ``width`` seconds up to ``end``, and the requests/s due in each."""
    slots = math.ceil(end / width)
    counts = [0] * slots
    for outcome in outcomes:
        counts[min(slots - 1, int(outcome.due / width))] += 1
    return [slot * width for slot in range(slots + 1)], [count / width for count in counts]


def summarise(run: Run, burst_at: float, watch: float) -> Summary:
    """Boil a run down to one column; ``watch``: when to count threads, in seconds after the last answer."""
    steady = [outcome for outcome in run.outcomes if outcome.phase == "steady"]
    burst = [outcome for outcome in run.outcomes if outcome.phase == "burst"]
    end = max(outcome.done for outcome in run.outcomes)
    burst_took = max((outcome.done for outcome in burst), default=burst_at) - burst_at
    loaded = max((outcome.done for outcome in steady), default=0.0) + burst_took
    after = next((sample for sample in run.samples if sample.at >= end + watch), run.samples[-1])

    def spread(outcomes: Sequence[Outcome]) -> tuple[float, float]:
        latencies = [outcome.latency for outcome in outcomes]
        return percentile(latencies, 0.5), percentile(latencies, 0.99)

    p50, p99 = spread(run.outcomes)
    return Summary(
        requests=len(run.outcomes),
        problems=sum(1 for outcome in run.outcomes if outcome.problem),
        rate=sum(1 for outcome in run.outcomes if not outcome.problem) / loaded,
        burst=burst_took,
        p50=p50,
        p99=p99,
        kinds={
            kind: spread([outcome for outcome in steady if outcome.kind == kind])
            for kind in ("search", "digest", "verify")
        },
        burst_search=spread([outcome for outcome in burst if outcome.kind == "search"]),
        peak_threads=max(sample.threads for sample in run.samples),
        threads_after=after.threads,
        watched=after.at - end,
        cpu=after.cpu - run.samples[0].cpu,
        peak_memory=run.peak_memory,
        late=max(outcome.late for outcome in run.outcomes),
    )


Look = Callable[[], Awaitable[tuple[int, float]]]


def looker(server: Child) -> tuple[Look, str]:
    """Return the way to count a server's threads and processor seconds, and what to call that way.

    Where there is a ``/proc`` the server notices nothing of it; elsewhere it is asked over its connection.
    """
    tasks = Path(f"/proc/{server.pid}/task")
    stat = Path(f"/proc/{server.pid}/stat")

    def from_proc() -> tuple[int, float]:
        user, system = stat.read_text().rpartition(")")[2].split()[11:13]
        return len(os.listdir(tasks)) - 1, (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    async def from_outside() -> tuple[int, float]:
        return from_proc()

    async def by_asking() -> tuple[int, float]:
        await server.send(question="sample")
        answer = await server.expect("sample", 10.0)
        return answer["threads"], answer["cpu"]

    return (from_outside, "/proc") if tasks.exists() else (by_asking, "asked")


async def sample_for_ever(look: Look, into: list[Sample]) -> None:
    """Take a sample every `EVERY` seconds until cancelled."""
    while True:
        threads, cpu = await look()
        into.append(Sample(time.monotonic(), threads, cpu))
        await asyncio.sleep(EVERY)


def peak_memory(pid: int) -> int | None:
    """Return the most bytes a process ever had resident, or None where ``/proc`` does not tell."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)
