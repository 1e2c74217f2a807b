"""What the view shows: the last snapshot, what came before it, and what the user has chosen. No terminal, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

HISTORY: Final = 240
"""How many snapshots the sparklines reach back."""
LATE: Final = 2.0
"""Seconds after which a missing answer is mentioned."""

Key = tuple[str, ...]


@dataclass
class Row:
    """A pool, or a lane of one.

    Attributes:
        key: The pool's name, and the lane's.
        figures: Its part of the snapshot.
        threads: Its threads (of a lane: its running tasks), oldest first.
        waiting: Its waiting tasks, oldest first.
        rate: Tasks done per second, between the last two snapshots; None after the first.
    """

    key: Key
    figures: dict[str, Any]
    threads: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY))
    waiting: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY))
    rate: float | None = None

    @property
    def is_lane(self) -> bool:
        return len(self.key) > 1

    @property
    def done(self) -> int:
        """How many tasks have ended, in any way."""
        return int(self.figures["completed"] + self.figures["failed"] + self.figures["cancelled"])

    @property
    def limit(self) -> int:
        return int(self.figures["limit" if self.is_lane else "max_workers"])


@dataclass(frozen=True)
class Task:
    pool: str
    figures: dict[str, Any]

    @property
    def key(self) -> Key:
        """What tells it from others, from snapshot to snapshot."""
        return self.pool, self.figures["thread"], self.figures["name"]

    @property
    def place(self) -> str:
        lane = self.figures["lane"]
        return f"{self.pool}/{lane}" if lane else self.pool


SORTS: Final[dict[str, Callable[[Task], Any]]] = {
    "time": lambda task: -task.figures["seconds"],
    "name": lambda task: str(task.figures["name"]),
    "pool": lambda task: task.place,
    "thread": lambda task: str(task.figures["thread"]),
}
"""By what tasks can be sorted, in the order in which one key goes through them."""


class Model:
    def __init__(self, waiting: str = "waiting for the first answer") -> None:
        self.waiting = waiting
        """What is shown until the first snapshot comes."""
        self.snapshot: dict[str, Any] | None = None
        self.rows: dict[Key, Row] = {}
        self.sort = "time"
        self.silent = 0.0
        self.opened: Task | None = None
        """The task whose stack is shown."""
        self.over = False
        """Whether that task is no longer running."""
        self.notice = ""
        """What the user is told until the next key."""
        self.scrolled = 0
        self._chosen: Key | None = None
        self._place = 0

    def update(self, snapshot: dict[str, Any]) -> None:
        before = self.snapshot
        self.snapshot = snapshot
        elapsed = snapshot["time"] - before["time"] if before is not None else 0.0
        rows: dict[Key, Row] = {}
        for key, figures in _parts(snapshot):
            known = self.rows.get(key)
            row = rows[key] = known or Row(key, figures)
            done = row.done
            row.figures = figures
            row.rate = max(0.0, (row.done - done) / elapsed) if known is not None and elapsed > 0 else None
            row.threads.append(figures["running" if row.is_lane else "workers"])
            row.waiting.append(figures["queued"])
        self.rows = rows
        self._follow()

    def tasks(self) -> list[Task]:
        if self.snapshot is None:
            return []
        found = [Task(pool["name"], task) for pool in self.snapshot["pools"] for task in pool["tasks"]]
        found.sort(key=SORTS["time"])
        found.sort(key=SORTS[self.sort])
        return found

    def decisions(self) -> list[tuple[float, str, dict[str, Any]]]:
        """Return what the sizing decided and for which pool, oldest first."""
        if self.snapshot is None:
            return []
        pools = self.snapshot["pools"]
        return sorted(
            ((each["at"], pool["name"], each) for pool in pools for each in pool["decisions"]),
            key=lambda entry: entry[0],
        )

    def chosen(self) -> int:
        """Return the place of the chosen task among `tasks`; it stays with the task as long as that runs."""
        tasks = self.tasks()
        for place, task in enumerate(tasks):
            if task.key == self._chosen:
                return place
        return max(0, min(self._place, len(tasks) - 1))

    def move(self, steps: int) -> None:
        """Choose another task, or scroll the stack."""
        self.notice = ""
        if self.opened is not None:
            self.scrolled = max(0, self.scrolled - steps)
            return
        tasks = self.tasks()
        if tasks:
            self._place = max(0, min(self.chosen() + steps, len(tasks) - 1))
            # At the top the choice does not follow a task: the first row stays chosen, whatever is in it.
            self._chosen = tasks[self._place].key if self._place else None

    @property
    def next_sort(self) -> str:
        """How the tasks are sorted after the next press of the key."""
        names = list(SORTS)
        return names[(names.index(self.sort) + 1) % len(names)]

    def sort_next(self) -> None:
        self.notice = ""
        self.sort = self.next_sort

    def toggle(self) -> None:
        """Show the stack of the chosen task, or close it."""
        self.notice = ""
        if self.opened is not None:
            self.close()
            return
        tasks = self.tasks()
        if tasks:
            self.opened, self.over, self.scrolled = tasks[self.chosen()], False, 0

    def close(self) -> None:
        self.opened = None

    def _follow(self) -> None:
        if self.opened is None:
            return
        for task in self.tasks():
            if task.key == self.opened.key and task.figures["seconds"] >= self.opened.figures["seconds"]:
                self.opened = task
                return
        # The last stack stays, to be read. If none has come, none will.
        self.over = True
        if not self.opened.figures["stack"]:
            self.notice = f"{self.opened.figures['name']} has ended"
            self.close()


def _parts(snapshot: dict[str, Any]) -> Iterator[tuple[Key, dict[str, Any]]]:
    for pool in snapshot["pools"]:
        yield (pool["name"],), pool
        for lane in pool["lanes"]:
            yield (pool["name"], lane["name"]), lane


def printable(text: object) -> str:
    """Return `text` without characters that would steer a terminal."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in str(text))
