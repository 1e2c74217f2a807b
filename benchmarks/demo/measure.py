"""What was seen: threads and processor time of the server, latencies of the requests."""

from __future__ import annotations

import asyncio
import bisect
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from benchmarks.engine.model import percentile
from benchmarks.load.serving import Server

from .control import Child, ChildFailed
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
class Common:
    """What the columns of both cases' tables have in common. Times in seconds."""

    requests: int
    problems: int
    p50: float
    p99: float
    peak_threads: int
    threads_after: int
    watched: float
    """How long after the last answer `threads_after` was counted."""
    cpu: float
    peak_memory: int | None
    late: float
    """The most by which the load generator itself sent a planned request later than it could have."""


@dataclass(frozen=True)
class Summary(Common):
    """One column of the table. Times in seconds."""

    rate: float
    """Right answers per second of load: to the last steady answer, plus from the burst to its last."""
    burst: float
    """From the burst until its last answer."""
    kinds: dict[str, tuple[float, float]]
    """Median and 99th percentile of each kind of request in the steady phase."""
    burst_search: tuple[float, float]
    """The same for the searches of the burst."""


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


def spread(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """Return the median and the 99th percentile of the latencies; not numbers if there are none."""
    latencies = [outcome.latency for outcome in outcomes] or [math.nan]
    return percentile(latencies, 0.5), percentile(latencies, 0.99)


def sample_at(run: Run, at: float) -> Sample:
    """Return the first sample taken at ``at`` or later, or the last there is."""
    return next((sample for sample in run.samples if sample.at >= at), run.samples[-1])


def common(run: Run, watch: float) -> dict[str, Any]:
    """Return the fields of `Common`; ``watch``: when to count threads, in seconds after the last answer."""
    end = max(outcome.done for outcome in run.outcomes)
    after = sample_at(run, end + watch)
    p50, p99 = spread(run.outcomes)
    return {
        "requests": len(run.outcomes),
        "problems": sum(1 for outcome in run.outcomes if outcome.problem),
        "p50": p50,
        "p99": p99,
        "peak_threads": max(sample.threads for sample in run.samples),
        "threads_after": after.threads,
        "watched": after.at - end,
        "cpu": after.cpu - run.samples[0].cpu,
        "peak_memory": run.peak_memory,
        "late": max(outcome.late for outcome in run.outcomes),
    }


def summarise(run: Run, burst_at: float, watch: float) -> Summary:
    """Boil a run down to one column; ``watch``: when to count threads, in seconds after the last answer."""
    steady = [outcome for outcome in run.outcomes if outcome.phase == "steady"]
    burst = [outcome for outcome in run.outcomes if outcome.phase == "burst"]
    burst_took = max((outcome.done for outcome in burst), default=burst_at) - burst_at
    loaded = max((outcome.done for outcome in steady), default=0.0) + burst_took
    return Summary(
        **common(run, watch),
        rate=sum(1 for outcome in run.outcomes if not outcome.problem) / loaded,
        burst=burst_took,
        kinds={
            kind: spread([outcome for outcome in steady if outcome.kind == kind])
            for kind in ("search", "digest", "verify")
        },
        burst_search=spread([outcome for outcome in burst if outcome.kind == "search"]),
    )


Look = Callable[[], Awaitable[tuple[int, float]]]


def watch(server: Child) -> Watch:
    """Return what counts a server's threads and processor seconds, to be entered.

    Where there is a ``/proc`` the server notices nothing of it; elsewhere it is asked over its connection.
    """
    process = Server(0, server.pid)

    async def from_outside() -> tuple[int, float]:
        threads = process.threads()
        if not threads:
            raise ChildFailed(f"the server has gone away{server.last_words()}")
        return threads - 1, process.cpu_seconds()

    async def by_asking() -> tuple[int, float]:
        await server.send(question="sample")
        answer = await server.expect("sample", 10.0)
        return answer["threads"], answer["cpu"]

    return Watch(from_outside, "/proc") if process.threads() else Watch(by_asking, "asked")


class Watch:
    """Samples of a server, taken every `EVERY` seconds."""

    def __init__(self, look: Look, how: str) -> None:
        self.samples: list[Sample] = []
        self.how = how
        """What to call the way they are taken."""
        self._look = look
        self._looking: asyncio.Task[None] | None = None

    async def _look_again(self) -> None:
        threads, cpu = await self._look()
        self.samples.append(Sample(time.monotonic(), threads, cpu))

    async def _look_for_ever(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            await self._look_again()

    async def until(self, at: float) -> None:
        """Wait for a sample later than ``at``, on the monotonic clock.

        Raises:
            ChildFailed: The server went away.
        """
        assert self._looking is not None
        while self.samples[-1].at <= at:
            await asyncio.wait({self._looking}, timeout=EVERY)
            if self._looking.done():
                self._looking.result()

    async def __aenter__(self) -> Self:
        await self._look_again()
        self._looking = asyncio.ensure_future(self._look_for_ever())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._looking is not None
        self._looking.cancel()
        await asyncio.wait({self._looking})
        if not self._looking.cancelled() and (error := self._looking.exception()):
            raise error
