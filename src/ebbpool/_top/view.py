"""The screen: a model drawn for a width and a height."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Group, OverflowMethod, RenderableType
from rich.table import Table
from rich.text import Text

from ebbpool._top.model import LATE, Model, Row, Task, printable

BARS: Final = " ▁▂▃▄▅▆▇█"
_FRAME: Final = re.compile(r'(?P<before> *File ")(?P<path>.*)(?P<after>", line \d+, in .*)')
RIGHT: Final[dict[str, Any]] = {"justify": "right"}
UNLIMITED: Final = 1 << 30
"""A height for output that is not a screen."""


def sparkline(values: Sequence[int], width: int, top: int) -> str:
    """Return the last values as bars; the tallest stands for `top`, and anything above nothing is seen."""
    steps = len(BARS) - 1
    shown = list(values)[-width:]
    top = max(top, *shown, 1) if shown else 1
    return "".join(BARS[0 if value <= 0 else max(1, round(value * steps / top))] for value in shown).rjust(width)


def _mark(figures: Mapping[str, Any]) -> Text:
    """Return what is odd about a task. One of an older process may lack some of it."""
    odd = next((word for word in ("blocked", "abandoned", "away") if figures.get(word)), "")
    return Text(odd, {"blocked": "red", "abandoned": "yellow"}.get(odd, ""))


def duration(seconds: float) -> str:
    """Return a time as one reads it."""
    if seconds < 100:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02}m" if hours else f"{minutes}m {rest:02}s"


class View:
    """Draws a model.

    Args:
        keys: Whether keys are read, and are explained at the bottom.
        stacks: Whether each task is followed by its stack.
    """

    def __init__(self, keys: bool = True, stacks: bool = False) -> None:
        self._keys = keys
        self._stacks = stacks

    def screen(self, model: Model, width: int, height: int = UNLIMITED) -> RenderableType:
        snapshot = model.snapshot
        parts: list[RenderableType] = [self._head(model, width)]
        if snapshot is None:
            lines = model.waiting.split("\n")[: max(1, height - 2)]
            parts.extend(Text(printable(line), no_wrap=True, overflow="ellipsis") for line in lines)
            return Group(*parts, *self._foot(model, height - 2 - len(lines)))
        # The heads of three sections, two empty lines, the first line and the last.
        room = max(3, height - 6 - (1 if self._keys else 0))
        decisions = model.decisions()
        log = min(len(decisions) or 1, max(1, min(8, room // 5)))
        pools = min(max(1, len(model.rows)), max(2, (room - log) // 2))
        tasks = max(1, room - log - pools)
        parts.append(self._pools(list(model.rows.values()), width, pools))
        parts.append(Text())
        if model.opened is not None:
            end = "which has ended" if model.over else ""
            model.scrolled, drawn_stack = self._stack(model.opened, end, model.scrolled, tasks + 1, width)
            parts.extend(drawn_stack)
            used = len(drawn_stack) - 1
        else:
            drawn, used = self._tasks(model, tasks)
            parts.append(drawn)
        parts.append(Text())
        logged = decisions[-(log + tasks - used) :]
        parts.extend(self._log(logged))
        return Group(*parts, *self._foot(model, room - pools - used - max(1, len(logged))))

    def _head(self, model: Model, width: int) -> Text:
        line = Text(no_wrap=True, overflow="ellipsis")
        snapshot = model.snapshot
        if snapshot is not None:
            threads = sum(pool["workers"] for pool in snapshot["pools"])
            line.append(f"pid {snapshot['pid']}", "bold")
            line.append(
                f"  {printable(snapshot['python'])}  ebbpool {printable(snapshot['ebbpool'])}"
                f"  {_count(len(snapshot['pools']), 'pool')}, {_count(threads, 'thread')}  {_clock(snapshot['time'])}"
            )
            # Each pool shows all loops of the process. One that runs an older ebbpool shows none.
            for lag in next((pool["loop_lag"] for pool in snapshot["pools"] if pool.get("loop_lag")), ()):
                line.append(f"  {printable(lag['name'])} late {1e3 * lag['p99']:.1f} ms (p99)")
            if others := snapshot.get("others"):
                line.append(f"  {_count(len(others), 'thread')} of no pool")
        if model.silent >= LATE:
            words = f" no answer for {int(model.silent)} s "
            if snapshot is not None:
                words += f"(figures of {_clock(snapshot['time'])}) "
                line.truncate(max(0, width - cell_len(words) - 1), overflow="crop", pad=True)
                line.append(" ")
            line.append(words, "reverse bold")
        return line

    def _pools(self, rows: list[Row], width: int, height: int) -> RenderableType:
        # A narrow screen has room for the figures only.
        spark = 0 if width < 72 else 8 + min(24, max(0, width - 80) // 4)
        columns: list[tuple[str, dict[str, Any], Callable[[Row], Text | str]]] = [
            ("POOL", {"ratio": 1, "min_width": 10}, _name),
            ("THREADS", RIGHT, lambda row: f"{row.threads[-1]}/{row.limit}"),
            ("", {"width": spark}, lambda row: Text(sparkline(row.threads, spark, 4), "cyan")),
            ("BUSY", RIGHT, lambda row: str(row.figures["running"])),
            # An older process, or a lane, tells of no tasks that are away.
            ("AWAY", RIGHT, lambda row: str(row.figures.get("away", ""))),
            ("BLOCKED", RIGHT, lambda row: _coloured(row.figures.get("blocked", ""), "red")),
            ("WAIT", RIGHT, _waiting),
            ("", {"width": spark}, lambda row: Text(sparkline(row.waiting, spark, 4), "yellow")),
            ("OLDEST", RIGHT, lambda row: duration(row.figures["oldest_wait"]) if row.figures["queued"] else "-"),
            ("EXPIRED", RIGHT, lambda row: str(row.figures.get("expired", "-"))),
            ("DONE/s", RIGHT, lambda row: "-" if row.rate is None else f"{row.rate:.0f}"),
        ]
        some = {figure: any(row.figures.get(figure) for row in rows) for figure in ("spilled", "expired")}
        wanted = {"": spark > 0, "AWAY": some["spilled"], "EXPIRED": some["expired"]}
        columns = [column for column in columns if wanted.get(column[0], True)]
        table = _table(*[(name, how) for name, how, _ in columns])
        shown = rows if len(rows) <= height else rows[: height - 1]
        for row in shown:
            table.add_row(*[cell(row) for _, _, cell in columns])
        if not rows:
            table.add_row("(no pool)")
        parts: list[RenderableType] = [table]
        if len(shown) < len(rows):
            parts.append(Text(f"… and {len(rows) - len(shown)} more", "dim"))
        return Group(*parts)

    def _tasks(self, model: Model, height: int) -> tuple[RenderableType, int]:
        tasks = model.tasks()
        if not tasks:
            return Group(Text("RUNNING", "bold dim"), Text("(nothing)", "dim")), 1
        chosen = model.chosen()
        start = max(0, min(chosen - height // 2, len(tasks) - height))
        table = _table(
            ("", {"width": 1}),
            (f"RUNNING {len(tasks)}, by {model.sort}", {"ratio": 3, "min_width": 16}),
            ("POOL", {"ratio": 2, "min_width": 8}),
            ("THREAD", {"ratio": 2, "min_width": 8}),
            ("", {"width": 9}),
            ("FOR", {"min_width": 7} | RIGHT),
        )
        for place, task in enumerate(tasks[start : start + height], start):
            figures = task.figures
            mark = self._keys and place == chosen
            table.add_row(
                "▸" if mark else "",
                printable(figures["name"]),
                printable(task.place),
                printable(figures["thread"]),
                _mark(figures),
                duration(figures["seconds"]),
                style="reverse" if mark else "",
            )
        parts: list[RenderableType] = [table]
        if self._stacks:
            for task in tasks:
                parts.append(Text())
                parts.extend(self._stack(task, "", 0, UNLIMITED, UNLIMITED)[1])
        return Group(*parts), min(height, len(tasks))

    def _stack(self, task: Task, end: str, scrolled: int, height: int, width: int) -> tuple[int, list[RenderableType]]:
        """Return how far the stack is scrolled, no further than it can be, and its title and lines."""
        figures = task.figures
        number = f" ({figures['native_id']})" if figures["native_id"] is not None else ""
        title = (
            f"STACK of {figures['name']}, {task.place}, thread {figures['thread']}{number}, "
            f"{end or 'for ' + duration(figures['seconds'])}"
        )
        lines = (
            [_fitted(line, width) for line in _lines(figures["stack"])]
            if figures["stack"]
            else ["away: its stack is not in this process" if figures.get("away") else "waiting for it…"]
        )
        # The innermost call is the last line, and that is what one wants to see.
        last = max(min(len(lines), height - 1), len(lines) - scrolled)
        # What is not a screen may have long lines.
        overflow: OverflowMethod = "ignore" if height == UNLIMITED else "ellipsis"
        parts: list[RenderableType] = [Text(printable(title), "bold", no_wrap=True, overflow=overflow)]
        for line in lines[max(0, last - (height - 1)) : last]:
            parts.append(Text(printable(line), no_wrap=True, overflow=overflow))
        return len(lines) - last, parts

    def _log(self, decisions: list[tuple[float, str, dict[str, Any]]]) -> Iterable[RenderableType]:
        yield Text("SIZING", "bold dim")
        for at, pool, each in decisions:
            change = str(each["workers"]) + (f"→{each['workers'] + each['grown']}" if each["grown"] else "")
            line = f"{_clock(at)}  {printable(pool)}  {change}  {printable(each['reason'])}"
            yield Text(line, no_wrap=True, overflow="ellipsis")
        if not decisions:
            yield Text("(nothing yet)", "dim")

    def _foot(self, model: Model, above: int) -> Iterable[RenderableType]:
        if not self._keys:
            return
        if above > 0:
            yield Text("\n" * (above - 1))
        keys = (
            "j/k scroll   Enter back   q quit"
            if model.opened is not None
            else f"j/k or arrows select   Enter stack   s sort by {model.next_sort}   q quit"
        )
        line = Text(no_wrap=True, overflow="ellipsis")
        if model.notice:
            line.append(printable(model.notice), "bold").append("   ")
        yield line.append(keys, "dim")


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


def _lines(stack: str) -> list[str]:
    return [line.replace("\t", "    ") for line in stack.rstrip("\n").split("\n")]
