"""Who goes first, simulated without a thread: `python -m benchmarks.simulation` prints it."""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.engine.model import percentile
from benchmarks.first import CHECK, CONNECTIONS, LOADS, LONGEST, PATIENCE, SECONDS, WORKERS, Outcome, requests
from ebbpool._core.backlog import OVERTAKEN, SORTED
from ebbpool._core.known import Functions, Known
from ebbpool._core.staff import SHORT_ROOM

POLICIES = ("fifo", "continuations", "every second turn", "short")
"""In which order calls are taken.

Continuations: every later call of a request before those that begin, and a reserve that grows while nothing moves.
Short: the pool's own rule. Every second turn: the same, but ordinary calls that have waited have it also where they
have most of the threads.
"""
_TURN = 0.005  # the loop hears of results, and makes the next calls, so often


@dataclass(eq=False)
class _Request:
    calls: list[str]
    at: int = 0
    queued: float = 0.0
    begun: float = 0.0
    known: Known | None = None  # of the call that waits or runs, if that is measured
    ahead: bool = False  # whether it waits or went as a short one
    beyond: bool = False  # whether its thread is one of those for short calls
    written_off: bool = False
    tired: bool = False


@dataclass
class Simulation:
    """One load, in the order of one of the `POLICIES`, without a thread."""

    policy: str
    workers: int
    now: float = 0.0
    free: int = CONNECTIONS
    passed: bool = False  # whether one that goes first was taken since the others had a turn
    moved: float = 0.0
    widened: int = 0
    running: set[_Request] = field(default_factory=set)
    blocked: deque[_Request] = field(default_factory=deque)
    short: list[_Request] = field(default_factory=list)
    queue: list[_Request] = field(default_factory=list)
    functions: Functions = field(default_factory=Functions)
    events: list[Any] = field(default_factory=list)

    def run(self, plans: list[list[str]]) -> Outcome:
        self.known = defaultdict[str, Known](lambda: Known(None, ""))
        self.numbers = itertools.count()
        self.waits, self.left, self.gave_up, last = list[float](), len(plans), 0, 0.0
        for plan in plans:
            self.later(0.0, self.enqueue, _Request(plan))
        self.later(SORTED, self.look)
        while self.left and self.now < LONGEST:
            self.now, _, event = heapq.heappop(self.events)
            before = self.left
            event()
            last = self.now if self.left < before else last
            while (request := self.next()) is not None:
                self.begin(request)
        return Outcome(self.gave_up + self.left, last, percentile(self.waits, 0.99) if self.waits else 0.0)

    def later(self, seconds: float, event: Callable[..., object], *args: Any) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(self.numbers), partial(event, *args)))

    def goes_first(self, request: _Request) -> bool:
        known = request.known
        if self.policy in ("fifo", "continuations") or known is None:
            return self.policy == "continuations" and request.at > 0
        # Those of one function that wait do so in one line.
        short = known.short if known.waiting else self.functions.is_short(known, self.now)
        known.short = short
        return short or (known.ended == 0.0 and (request.ahead or not known.tried))

    def enqueue(self, request: _Request) -> None:
        busy = self.queue or self.short or len(self.running) >= self.workers
        request.queued, request.ahead = self.now, False
        request.known = self.known[request.calls[request.at]] if busy else None
        self.line_up(request)
        if request.known is not None:
            request.known.waiting += 1

    def line_up(self, request: _Request) -> None:
        request.ahead = self.goes_first(request)
        if request.ahead and request.known is not None:
            request.known.tried = True
        (self.short if request.ahead else self.queue).append(request)

    def next(self) -> _Request | None:
        """Take a call for which there is a thread."""
        counted = sum(not each.written_off for each in self.running)
        beyond = sum(each.beyond and not each.written_off for each in self.running)
        place = counted - beyond < self.workers
        room = max(1, self.workers // SHORT_ROOM)
        if self.policy == "continuations":
            room = min(room + self.widened, max(1, self.workers // 4))
        line = self.short or self.queue
        if not line or not (place or (self.short and beyond < room)):
            return None
        if self.short and self.queue and place and self.passed:
            ordinary = sum(not (each.ahead or each.written_off) for each in self.running)
            shares = 2 * ordinary < self.workers or self.policy != "short"
            if shares and self.queue[0].queued < min(self.short[0].queued, self.now - OVERTAKEN):
                line = self.queue
        self.passed = line is self.short
        request = line.pop(0)
        request.beyond = not place
        return request

    def begin(self, request: _Request) -> None:
        name = request.calls[request.at]
        self.moved = request.begun = self.now
        self.running.add(request)
        if request.known is not None:
            request.known.waiting -= 1
            self.functions.begin(request.known, self.now)
        if request.calls == [CHECK]:
            self.waits.append(self.now - request.queued)
        if name == "take" and not self.free:
            request.tired = True
            self.blocked.append(request)
            self.later(PATIENCE, self.tire, request)
            return
        self.free -= name == "take"
        self.later(SECONDS[name], self.end, request)

    def leave(self, request: _Request) -> None:
        self.running.remove(request)
        request.written_off = False
        if request.known is not None:
            self.functions.end(request.known, request.begun, self.now)

    def tire(self, request: _Request) -> None:
        if request.tired:
            self.blocked.remove(request)
            self.leave(request)
            self.gave_up += 1
            self.left -= 1

    def end(self, request: _Request) -> None:
        self.leave(request)
        if request.calls[request.at] in ("give", "commit"):
            if self.blocked:
                heir = self.blocked.popleft()
                heir.tired = False
                self.later(SECONDS["take"], self.end, heir)
            else:
                self.free += 1
        request.at += 1
        if request.at < len(request.calls):
            self.later(_TURN - self.now % _TURN, self.enqueue, request)
        else:
            self.left -= 1

    def look(self) -> None:
        """Have calls change their lines, and those that have turned long in threads for short ones stop counting."""
        self.later(SORTED, self.look)
        waiting = sorted([*self.short, *self.queue], key=lambda each: each.queued)
        if self.policy == "continuations":
            self.widened += bool(waiting) and self.now - self.moved >= 0.05
        if self.policy in ("fifo", "continuations"):
            return
        beyond = [each for each in self.running if each.beyond and not each.written_off]
        for each in beyond if len(beyond) >= max(1, self.workers // SHORT_ROOM) else ():
            known = each.known
            if known and self.now - each.begun >= SORTED and not self.functions.is_short(known, self.now):
                each.written_off = sum(other.written_off for other in self.running) < self.workers
        for known in {each.known for each in waiting if each.known is not None}:
            known.short = self.functions.is_short(known, self.now)
        self.short.clear()
        self.queue.clear()
        for each in waiting:
            self.line_up(each)


def simulate(policy: str, load: str, workers: int, count: int = 1000) -> Outcome:
    """Return what becomes of a load of so many requests."""
    return Simulation(policy, workers).run(requests(load, count))


if __name__ == "__main__":
    for load, workers in itertools.product(LOADS, WORKERS):
        print(f"{load}, {workers} workers")
        for policy in POLICIES:
            gave_up, seconds, check = simulate(policy, load, workers)
            print(f"  {policy:18s} {gave_up:4d} gave up, {seconds:5.2f} s, check {check * 1e3:5.0f} ms")
