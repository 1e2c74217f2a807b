"""The screen: the last snapshot, what came before it and what the user has chosen, drawn for a width and a height."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Group, OverflowMethod, RenderableType
from rich.table import Table
from rich.text import Text

from ebbpool._top.client import LATE
from ebbpool._top.processes import printable

HISTORY: Final = 240
"""How many snapshots the sparklines reach back."""
BARS: Final = " ▁▂▃▄▅▆▇█"
_FRAME: Final = re.compile(r'(?P<before> *File ")(?P<path>.*)(?P<after>", line \d+, in .*)')
_NUMBER: Final = re.compile(r"(?<![\w.])\d+")
"""A number in a reason; not one in the name of a function."""
RIGHT: Final[dict[str, Any]] = {"justify": "right"}
UNLIMITED: Final = 1 << 30
"""A height, or a width, for output that is not a screen."""

Key = tuple[str, ...]


@dataclass
class Row:
    """A pool, or a lane of one, and its part of the snapshot."""

    key: Key
    figures: dict[str, Any]
    threads: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY))
    """How many there were, oldest first; of a lane, running tasks."""
    waiting: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY))
    rate: float | None = None
    """Tasks done per second, between the last two snapshots; None after the first."""

    @property
    def is_lane(self) -> bool:
        return len(self.key) > 1

    @property
    def done(self) -> int:
        return int(self.figures["completed"] + self.figures["failed"] + self.figures["cancelled"])

    @property
    def limit(self) -> int:
        return int(self.figures["limit" if self.is_lane else "max_workers"])


Task = dict[str, Any]
"""A task as the snapshot has it, and its "place": its pool, and its lane if it has one."""

Decision = tuple[float, str, dict[str, Any], int]
"""When it was made, its pool, the decision as the snapshot has it, and how often it was made."""


class Model:
    """What is shown, without a terminal and without a clock."""

    def __init__(self, waiting: str = "waiting for the first answer") -> None:
        self.waiting = waiting
        """What is shown until the first snapshot comes."""
        self.snapshot: dict[str, Any] | None = None
        self.rows: dict[Key, Row] = {}
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
        before, self.snapshot = self.snapshot, snapshot
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
        pools = self.snapshot["pools"] if self.snapshot is not None else []
        found = [
            task | {"place": f"{pool['name']}/{task['lane']}" if task["lane"] else pool["name"]}
            for pool in pools
            for task in pool["tasks"]
        ]
        return sorted(found, key=lambda task: -task["seconds"])

    def chosen(self) -> int:
        """Return the place of the chosen task among `tasks`; it stays with the task as long as that runs."""
        keys = [_key(task) for task in self.tasks()]
        return keys.index(self._chosen) if self._chosen in keys else max(0, min(self._place, len(keys) - 1))

    def move(self, steps: int) -> None:
        """Choose another task, or scroll the stack."""
        self.notice = ""
        if self.opened is not None:
            self.scrolled = max(0, self.scrolled - steps)
        elif tasks := self.tasks():
            self._place = max(0, min(self.chosen() + steps, len(tasks) - 1))
            # At the top the choice does not follow a task: the first row stays chosen, whatever is in it.
            self._chosen = _key(tasks[self._place]) if self._place else None

    def toggle(self) -> None:
        """Show the stack of the chosen task, or close it."""
        self.notice = ""
        if self.opened is not None:
            self.close()
        elif tasks := self.tasks():
            self.opened, self.over, self.scrolled = tasks[self.chosen()], False, 0

    def close(self) -> None:
        self.opened = None

    def _follow(self) -> None:
        if self.opened is None:
            return
        for task in self.tasks():
            if _key(task) == _key(self.opened) and task["seconds"] >= self.opened["seconds"]:
                self.opened = task
                return
        # The last stack stays, to be read. If none has come, none will.
        self.over = True
        if not self.opened["stack"]:
            self.notice = f"{self.opened['name']} has ended"
            self.close()


KEYS: Final[dict[str, Callable[[Model], None]]] = {
    "enter": Model.toggle,
    "escape": Model.close,
    "up": lambda model: model.move(-1),
    "down": lambda model: model.move(1),
    "page up": lambda model: model.move(-10),
    "page down": lambda model: model.move(10),
}


def _key(task: Task) -> Key:
    """Return what tells a task from others, from snapshot to snapshot."""
    return task["place"], task["thread"], task["name"]


def _parts(snapshot: dict[str, Any]) -> Iterator[tuple[Key, dict[str, Any]]]:
    for pool in snapshot["pools"]:
        yield (pool["name"],), pool
        for lane in pool["lanes"]:
            # The lane of a loop has a limit that is none.
            yield (pool["name"], lane["name"]), lane | {"limit": min(lane["limit"], pool["max_workers"])}


def screen(
    model: Model, width: int, height: int = UNLIMITED, *, keys: bool = True, stacks: bool = False
) -> RenderableType:
    """Draw a model, with what is chosen and what keys do if `keys` are read, and with each task's stack if wanted."""
    snapshot = model.snapshot
    parts: list[RenderableType] = [_head(model, width)]
    if snapshot is None:
        lines = model.waiting.split("\n")[: max(1, height - 2)]
        parts.extend(Text(printable(line), no_wrap=True, overflow="ellipsis") for line in lines)
        return Group(*parts, *(_foot(model, height - 2 - len(lines)) if keys else ()))
    decisions = _decisions(snapshot)
    # The heads of three sections, two empty lines, the first line and the last.
    room = max(3, height - 6 - keys)
    log = min(len(decisions) or 1, max(1, min(8, room // 5)))
    pools = min(max(1, len(model.rows)), max(2, (room - log) // 2))
    tasks = max(1, room - log - pools)
    parts += [_pools(list(model.rows.values()), width, pools, keys), Text()]
    if model.opened is not None:
        title, *stack = _stack(model.opened, width, "which has ended" if model.over else "")
        # The innermost call is the last line, and that is what one wants to see.
        last = max(min(len(stack), tasks), len(stack) - model.scrolled)
        model.scrolled = len(stack) - last
        parts += [title, *stack[max(0, last - tasks) : last]]
        used = min(tasks, last)
    else:
        parts.append(_tasks(model, tasks, keys, stacks))
        used = max(1, min(tasks, len(model.tasks())))
    logged = decisions[-(log + tasks - used) :]
    parts += [Text(), *_log(logged, keys)]
    return Group(*parts, *(_foot(model, room - pools - used - max(1, len(logged))) if keys else ()))


def _head(model: Model, width: int) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    snapshot = model.snapshot
    words = f" no answer for {int(model.silent)} s " if model.silent >= LATE else ""
    if snapshot is None:
        return line.append(words, "reverse bold")
    if words:
        words += f"(figures of {_clock(snapshot['time'])}) "
    room = width - cell_len(words)
    pools = snapshot["pools"]
    threads = sum(pool["workers"] for pool in pools)
    line.append(f"pid {snapshot['pid']}", "bold")
    for fact in (
        f"{_count(len(pools), 'pool')}, {_count(threads, 'thread')}",
        # Each pool shows all loops of the process.
        *(f"loop in {lag['name']} late {1e3 * lag['p99']:.1f} ms" for lag in (pools[0]["loop_lag"] if pools else ())),
        *(f"{_count(len(others), 'other thread')}" for others in [snapshot["others"]] if others),
        _clock(snapshot["time"]),
        snapshot["python"],
        f"ebbpool {snapshot['ebbpool']}",
    ):
        # What has no room is left out, for half a figure is none.
        if line.cell_len + cell_len(fact := "  " + printable(fact)) < room:
            line.append(fact)
    if words:
        line.pad_right(max(0, room - line.cell_len))
        line.append(words, "reverse bold")
    return line


def _pools(rows: list[Row], width: int, height: int, rates: bool) -> RenderableType:
    # A narrow screen has room for the figures only.
    expired = any(row.figures.get("expired") for row in rows)
    room = width - 8 * expired
    spark = 0 if room < 76 else 8 + min(24, max(0, room - 80) // 4)
    columns: list[tuple[str, dict[str, Any], Callable[[Row], Text | str]]] = [
        ("POOL", {"ratio": 1, "min_width": 10}, _name),
        ("THREADS", RIGHT, lambda row: f"{row.threads[-1]}/{row.limit}"),
        ("", {"width": spark}, lambda row: Text(sparkline(row.threads, spark, 4), "cyan")),
        ("BUSY", RIGHT, lambda row: str(row.figures["running"])),
        ("BLOCKED", RIGHT, lambda row: _coloured(row.figures.get("blocked", ""), "red")),
        ("WAIT", RIGHT, _waiting),
        ("", {"width": spark}, lambda row: Text(sparkline(row.waiting, spark, 4), "yellow")),
        ("OLDEST", RIGHT, lambda row: duration(row.figures["oldest_wait"]) if row.figures["queued"] else "-"),
        ("EXPIRED", RIGHT, lambda row: str(row.figures["expired"])),
        ("DONE/s", RIGHT, lambda row: "-" if row.rate is None else f"{row.rate:.0f}"),
    ]
    wanted = {"": spark > 0, "EXPIRED": expired, "DONE/s": rates}
    columns = [column for column in columns if wanted.get(column[0], True)]
    table = _table(*[(name, how) for name, how, _ in columns])
    shown = rows if len(rows) <= height else rows[: height - 1]
    for row in shown:
        table.add_row(*[cell(row) for _, _, cell in columns])
    if not rows:
        table.add_row("(no pool)")
    more = [Text(f"… and {len(rows) - len(shown)} more", "dim")] if len(shown) < len(rows) else []
    return Group(table, *more)


def _tasks(model: Model, height: int, keys: bool, stacks: bool) -> RenderableType:
    tasks = model.tasks()
    if not tasks:
        return Group(Text("RUNNING", "bold dim"), Text("(nothing)", "dim"))
    chosen = model.chosen()
    start = max(0, min(chosen - height // 2, len(tasks) - height))
    table = _table(
        ("", {"width": 1}),
        (f"RUNNING {len(tasks)}", {"ratio": 3, "min_width": 16}),
        ("POOL", {"ratio": 2, "min_width": 8}),
        ("THREAD", {"ratio": 2, "min_width": 8}),
        ("", {"width": 9}),
        ("FOR", {"min_width": 7} | RIGHT),
    )
    for place, task in enumerate(tasks[start : start + height], start):
        mark = keys and place == chosen
        table.add_row(
            "▸" if mark else "",
            printable(task["name"]),
            printable(task["place"]),
            printable(task["thread"]),
            _mark(task),
            duration(task["seconds"]),
            style="reverse" if mark else "",
        )
    parts: list[RenderableType] = [table]
    for task in tasks if stacks else ():
        parts += [Text(), *_stack(task)]
    return Group(*parts)


def _stack(task: Task, width: int = UNLIMITED, end: str = "") -> list[Text]:
    """Return the title and the lines of a stack; what is not a screen may have long lines."""
    number = f" ({task['native_id']})" if task["native_id"] is not None else ""
    title = (
        f"STACK of {task['name']}, {task['place']}, thread {task['thread']}{number}, "
        f"{end or 'for ' + duration(task['seconds'])}"
    )
    if task["stack"]:
        lines = [_fitted(line, width) for line in task["stack"].rstrip("\n").replace("\t", "    ").split("\n")]
    else:
        lines = ["waiting for it…"]
    overflow: OverflowMethod = "ignore" if width == UNLIMITED else "ellipsis"
    texts = [Text(printable(line), no_wrap=True, overflow=overflow) for line in (title, *lines)]
    texts[0].style = "bold"
    return texts


def _decisions(snapshot: dict[str, Any]) -> list[Decision]:
    """Return the decisions of all pools in order; of a pool's repeats while it does not grow, the last."""
    found: list[Decision] = []
    for pool in snapshot["pools"]:
        same: dict[str, Decision] = {}
        for each in pool["decisions"]:
            if each["grown"]:
                found += [*same.values(), (each["at"], pool["name"], each, 1)]
                same.clear()
            else:
                reason = _NUMBER.sub("", each["reason"])
                times = same[reason][-1] if reason in same else 0
                same[reason] = each["at"], pool["name"], each, times + 1
        found += same.values()
    return sorted(found, key=lambda decision: decision[0])


def _log(decisions: list[Decision], keys: bool) -> Iterable[RenderableType]:
    yield Text("SIZING", "bold dim")
    for at, pool, each, times in decisions:
        change = str(each["workers"]) + (f"→{each['workers'] + each['grown']}" if each["grown"] else "")
        again = f"{times} times " if times > 1 else ""
        line = f"{_clock(at)}  {printable(pool)}  {change}  {again}{printable(each['reason'])}"
        # What is printed may have long lines, and the reason is at their end.
        yield Text(line, no_wrap=True, overflow="ellipsis" if keys else "ignore")
    if not decisions:
        yield Text("(nothing yet)", "dim")


def _foot(model: Model, above: int) -> Iterable[RenderableType]:
    if above > 0:
        yield Text("\n" * (above - 1))
    keys = "j/k or arrows select   Enter stack" if model.opened is None else "j/k scroll   Enter back"
    line = Text(no_wrap=True, overflow="ellipsis")
    if model.notice:
        line.append(printable(model.notice), "bold").append("   ")
    yield line.append(f"{keys}   q quit", "dim")


def sparkline(values: Sequence[int], width: int, top: int) -> str:
    """Return the last values as bars; the tallest stands for `top`, and anything above nothing is seen."""
    steps = len(BARS) - 1
    shown = list(values)[-width:]
    top = max([top, *shown])
    return "".join(BARS[0 if value <= 0 else max(1, round(value * steps / top))] for value in shown).rjust(width)


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02}m" if hours else f"{minutes}m {rest:02}s"


def _table(*columns: tuple[str, dict[str, Any]]) -> Table:
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold dim")
    for name, how in columns:
        table.add_column(name, no_wrap=True, **how)
    return table


def _name(row: Row) -> Text:
    ended = " (shut down)" if row.figures.get("closed") else ""
    return Text(("└ " if row.is_lane else "") + printable(row.key[-1]) + ended, "" if row.is_lane else "bold")


def _waiting(row: Row) -> Text:
    waiting = _coloured(row.figures["queued"], "yellow")
    bound = row.figures.get("max_queue")
    return waiting if bound is None else waiting.append(f"/{bound}")


def _coloured(number: Any, colour: str) -> Text:
    return Text(str(number), colour if number else "dim")


def _mark(task: Task) -> Text:
    """Return what is odd about a task. Of one taken for short it says only that it went first: it may hang."""
    colours = {"blocked": "red", "abandoned": "yellow", "short": "cyan"}
    odd = next((word for word in colours if task[word]), "")
    return Text("first" if odd == "short" else odd, colours.get(odd, ""))


def _fitted(line: str, width: int) -> str:
    """Return a line of a stack whose path is shortened at its beginning: file name and line number must be seen."""
    match = _FRAME.fullmatch(line)
    excess = cell_len(line) - width
    if match is None or excess <= 0:
        return line
    return f"{match['before']}…{match['path'][excess + 1 :]}{match['after']}"


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
