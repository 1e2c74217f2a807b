"""Faults put into the engine, which the model beside each finds: a module, a text in it, and what is in its place.

The first six leave out a step of a protocol; the others are faults that the engine once had, or had like these.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    name: str
    model: str
    module: str
    text: str
    instead: str


POOL, TIMEKEEPER = "_core.pool", "_pool.timekeeper"
MUTANTS = [
    Mutant(
        "the timekeeper ends without a last look",
        "timekeepers_end_against_delay",
        TIMEKEEPER,
        "if self._alarms.arrived() or self._calls or self._start_requests:",
        "if False:",
    ),
    Mutant(
        "no room as a worker parks",
        "hand_to_hand",
        POOL,
        "            self._rest(worker)\n            worker.actions = self._balance(False)",
        "            self._rest(worker)",
    ),
    Mutant(
        "a worker that has waited for long does not look whether it was woken",
        "wake_against_keep_alive",
        POOL,
        "        elif worker.state == PARKED:\n            staff.move(worker, COMING)",
        "        elif worker.expired:\n            self._rest(worker)\n            return None\n"
        "        elif worker.state == PARKED:\n            staff.move(worker, COMING)",
    ),
    Mutant(
        "a waiter does not look again before it waits",
        "wait_against_end",
        "_core.future",
        "                if not told:\n                    self._join(alone)",
        "                told = False\n                self._join(alone)",
    ),
    Mutant(
        "a loop that has delivered all does not say so",
        "post_against_open",
        "_core.loop_calls",
        "                self.come = self.rings\n                return",
        "                return",
    ),
    Mutant(
        "a worker that arrives wakes nobody for what else waits",
        "wake_in_turn",
        POOL,
        "        return self._balance(arrives)",
        "        return 0",
    ),
    Mutant(
        "who gives up waiting for room stays there",
        "room_given_up",
        POOL,
        "            if waits:\n                self._withdraw(task)",
        "            if waits:\n                pass",
    ),
    Mutant(
        "a delayed call is added to a pool that is just closed",
        "delay_against_shutdown",
        "_core.timers",
        "        if executor._pool.closed:\n            future.cancel()",
        "        if False:\n            future.cancel()",
    ),
    Mutant(
        "who adds a delayed call does not see that the timekeeper has ended",
        "timekeepers_end_against_delay",
        "_core.timers",
        "        if not self._runs:\n            self.start()\n\n    def void",
        "\n    def void",
    ),
    Mutant(
        "a lane lets nobody in as a task in the queue is cancelled",
        "lane_against_cancel",
        POOL,
        "            if lane is not None and (line is None or line.queued):",
        "            if lane is not None and line is None:",
    ),
    Mutant(
        "a look that is promised is not asked for",
        "timekeepers_end_against_watch",
        POOL,
        "            self.next_look = wanted\n            actions |= LOOK",
        "            self.next_look = wanted",
    ),
    Mutant(
        "a refused start keeps its place",
        "refused_thread_against_submit",
        POOL,
        "            staff.unhire(1 + staff.unborn)",
        "            staff.unhire(staff.unborn)",
    ),
    Mutant(
        "a call whose submit raised runs all the same",
        "refused_thread_against_submit",
        POOL,
        "            if withdrawn and task is not None:\n                self._withdraw(task)",
        "            if withdrawn and task is not None:\n                pass",
    ),
    Mutant(
        "nobody comes for what waits as a call is abandoned",
        "abandon_against_submit",
        POOL,
        "                staff.become(worker, LEFT)",
        "                pass",
    ),
    Mutant(
        "a session that closes drops its last call",
        "lease_against_release",
        "session",
        "            self.calls.put(call)\n        if task",
        "        self.calls.put(call)\n        if task",
    ),
    Mutant(
        "a task is taken though it was cancelled",
        "idle_against_cancel",
        POOL,
        "            if task._code == PENDING:\n                task._code = RUNNING",
        "            if True:\n                task._code = RUNNING",
    ),
    Mutant(
        "a worker that waits for its own pool has nobody stand in",
        "nested_against_submit",
        POOL,
        "                self.staff.move(worker, BLOCKED)\n            actions = self._balance(False)",
        "                self.staff.move(worker, BLOCKED)\n            actions = 0",
    ),
    Mutant(
        "what a full queue holds back is not let in as another is cancelled",
        "loop_against_full_queue",
        "_core.loop_calls",
        "actions = pool._balance(False)",
        "actions = 0",
    ),
]
