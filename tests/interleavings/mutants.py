"""Faults put into the engine, which the model beside each finds: a module, a text in it, and what is in its place.

The first six are steps of the protocols left out; the others are faults that the engine once had, or had like these.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    name: str
    model: str
    module: str
    text: str
    instead: str


MUTANTS = [
    Mutant(
        "the timekeeper ends without a last look",
        "timekeepers_end_against_delay",
        "_pool.timekeeper",
        "if self._alarms.arrived() or self._calls or self._callers:",
        "if False:",
    ),
    Mutant(
        "no room as a worker parks",
        "hand_to_hand",
        "_core.pool",
        """        if self.seekers:
            self._make_room()
        self._tell_idlers()
        return self._staff()""",
        """        self._tell_idlers()
        return self._staff()""",
    ),
    Mutant(
        "a worker that gives up waiting does not look whether it was woken",
        "wake_against_keep_alive",
        "_core.pool",
        "        if woken:\n            worker.bell.acquire()",
        "        if False:\n            worker.bell.acquire()",
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
        "a worker that arrives calls nobody for what else waits",
        "wake_in_turn",
        "_core.pool",
        "        if self._waiting() > 0 and (self.parked or not self.covered or self._wants_more()):\n",
        "        if False:\n",
    ),
    Mutant(
        "who gives up waiting for room keeps the place",
        "room_given_up",
        "_core.pool",
        "                self.promised.remove(waiter)\n                self._make_room()",
        "                pass",
    ),
    Mutant(
        "a delayed call is added to a pool that is just closed",
        "delay_against_shutdown",
        "_core.timers",
        "        if executor._pool.closed:\n            future.cancel()\n        # A",
        "        # A",
    ),
    Mutant(
        "a delayed call sees no timekeeper end",
        "timekeepers_end_against_delay",
        "_core.timers",
        "        if self._thread is None:\n            self.start()\n\n    def void",
        "\n    def void",
    ),
    Mutant(
        "a lane admits nobody as a task in the queue is cancelled",
        "lane_against_cancel",
        "_core.pool",
        "                lane.leave()\n                self._admit(lane)\n            if self.seekers:",
        "                lane.leave()\n            if self.seekers:",
    ),
    Mutant(
        "what waits in a lane for a limited time is not looked at",
        "max_wait_behind_another",
        "_core.pool",
        "        self.minded = True\n        return WATCH\n\n    @cython.locals(known=Known, goes=cython.bint)",
        "        return None\n\n    @cython.locals(known=Known, goes=cython.bint)",
    ),
    Mutant(
        "a refused start keeps others from starting",
        "refused_thread_against_submit",
        "_core.pool",
        "            if searching:\n                self.searching = False\n            self._uncover()",
        "            self._uncover()",
    ),
    Mutant(
        "a call whose submit raised runs all the same",
        "refused_thread_against_submit",
        "_core.pool",
        "            if withdrawn and future is not None:\n                self._withdraw(future)",
        "            if withdrawn and future is not None:\n                pass",
    ),
    Mutant(
        "the worker of an abandoned call counts as blocked for good",
        "abandon_against_end",
        "_core.pool",
        "        if worker.written_off:\n            self._write_off(worker, -1)\n            # Another",
        "        if worker.written_off:\n            # Another",
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
        "cancel_against_take",
        "_core.worker",
        "                        if future._code == PENDING:\n                            future._code = RUNNING",
        "                        if True:\n                            future._code = RUNNING",
    ),
    Mutant(
        "a lane is closed beside its mutex",
        "lane_against_its_close",
        "_core.pool",
        "                if lane is not None:\n                    over = lane.admitted == 0",
        "                if lane is not None:\n                    over = not lane.backlog",
    ),
]
