"""What `top` draws, for a width and a height, from made-up snapshots."""

from __future__ import annotations

import io
from typing import Any

import pytest
from support.monitor import lane_of, pool_of, snapshot_of, task_of

rich_console = pytest.importorskip("rich.console")
model = pytest.importorskip("ebbpool._top.model")
view = pytest.importorskip("ebbpool._top.view")

BUSY = pool_of(
    "web",
    workers=12, running=9, idle=3, blocked=2, queued=7, oldest_wait=1.25, max_queue=100,
    lanes=[lane_of("images", limit=6, running=6, queued=3, oldest_wait=61.0)],
    tasks=[task_of("quick", 0.01, lane="images"), task_of("slow", 3700.0), task_of("middle", 35.22, blocked=True)],
    decisions=[{"at": 999.0, "workers": 8, "grown": 4, "reason": "grew by 4: 12 waiting, processors 31% used"}],
)  # fmt: skip


def drawn(state: Any, width: int = 80, height: int = 24, **how: Any) -> list[str]:
    """Return the lines of the screen, without the blanks at their ends."""
    console = rich_console.Console(file=io.StringIO(), width=width, height=height, color_system=None)
    console.print(view.View(**how).screen(state, width, height))
    lines = console.file.getvalue().split("\n")[:-1]
    assert all(len(line) <= width for line in lines), lines
    return [line.rstrip() for line in lines]


def state_of(*snapshots: dict[str, Any]) -> Any:
    state = model.Model()
    for each in snapshots:
        state.update(each)
    return state


def test_the_screen_of_a_busy_process() -> None:
    before = pool_of("web", workers=4, completed=0, lanes=[lane_of("images")])
    lines = drawn(state_of(snapshot_of(before, time=998.0), snapshot_of(BUSY | {"completed": 300, "failed": 20})))
    assert len(lines) == 24
    assert lines[0].startswith("pid 4242  CPython 3.13.0 (GIL on)  ebbpool 0.1.0  1 pool, 12 threads  ")
    assert lines[1].split() == ["POOL", "THREADS", "BUSY", "BLOCKED", "WAIT", "OLDEST", "DONE/s"]
    assert lines[2].split() == ["web", "12/256", "▃█", "9", "2", "7/100", "█", "1.25", "s", "160"]
    assert lines[3].split() == ["└", "images", "6/6", "█", "6", "3", "▆", "61.0", "s", "0"]
    assert lines[5].split() == ["RUNNING", "3,", "by", "time", "POOL", "THREAD", "FOR"]
    assert lines[6].split() == ["▸", "slow", "web", "thread_of_slow", "1h", "01m"]
    assert lines[7].split() == ["middle", "web", "thread_of_middle", "blocked", "35.2", "s"]
    assert lines[8].split() == ["quick", "web/images", "thread_of_quick", "0.01", "s"]
    assert lines[10] == "SIZING"
    assert lines[11].endswith("  web  8→12  grew by 4: 12 waiting, processors 31% used")
    assert lines[23] == "j/k or arrows select   Enter stack   s sort by name   q quit"


def test_without_keys_nothing_is_chosen_or_explained() -> None:
    lines = drawn(state_of(snapshot_of(BUSY)), height=view.UNLIMITED, keys=False)
    assert len(lines) == 12
    assert not any("▸" in line or "quit" in line for line in lines)


def test_what_came_too_late_and_what_nobody_waits_for_is_marked() -> None:
    late = pool_of("web", expired=12, lanes=[lane_of("images")], tasks=[task_of("f", 1.0, abandoned=True)])
    lines = drawn(state_of(snapshot_of(late, pool_of("quick", expired=0))))
    assert lines[1].split() == ["POOL", "THREADS", "BUSY", "BLOCKED", "WAIT", "OLDEST", "EXPIRED", "DONE/s"]
    assert [line.split()[-2] for line in lines[2:5]] == ["12", "-", "0"]
    assert lines[7].split() == ["▸", "f", "web", "thread_of_f", "abandoned", "1.00", "s"]
    assert "EXPIRED" not in drawn(state_of(snapshot_of(BUSY)))[1]


def test_stacks_follow_where_there_are_no_keys() -> None:
    stack = '  File "app.py", line 1, in f\n    ' + "x" * 100 + "\n"
    tasks = [task_of("f", 1.0, stack=stack)]
    console = rich_console.Console(file=io.StringIO(), width=80, color_system=None)
    state = state_of(snapshot_of(pool_of("web", tasks=tasks)))
    console.print(view.View(keys=False, stacks=True).screen(state, 80), crop=False)
    text = console.file.getvalue()
    assert "STACK of f, web, thread thread_of_f (77), for 1.00 s" in text
    assert "    " + "x" * 100 in text


def test_the_threads_of_no_pool_are_counted() -> None:
    shown = snapshot_of(BUSY) | {"others": ["MainThread", "stranger"]}
    assert drawn(state_of(shown), width=120)[0].endswith("  2 threads of no pool")


def test_an_idle_process() -> None:
    lines = drawn(state_of(snapshot_of()))
    assert lines[2] == "(no pool)"
    assert lines[5] == "(nothing)"
    assert len(lines) == 24


@pytest.mark.parametrize("height", [8, 12, 24, 60])
@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_it_fits_any_terminal(width: int, height: int) -> None:
    pools = [BUSY | {"name": f"pool number {number}"} for number in range(9)]
    many = [task_of(f"task {number}", 1.0 * number) for number in range(60)]
    state = state_of(snapshot_of(pools[0] | {"tasks": many}, *pools[1:]))
    for move in (0, 1, 1000, -3):
        state.move(move)
        lines = drawn(state, width, height)
        assert len(lines) == max(height, 11), "\n".join(lines)
        assert any("more" in line for line in lines) == (height < 60)
        assert sum("▸" in line for line in lines) == 1
    state.toggle()
    assert len(drawn(state, width, height)) == max(height, 11)


def test_names_cannot_steer_the_terminal() -> None:
    evil = "\x1b[2J\x07\u202ename\n"
    tasks = [task_of(evil, 1.0, thread=evil, lane=evil, stack=f"  {evil}\n")]
    decisions = [{"at": 1.0, "workers": 1, "grown": 1, "reason": evil}]
    state = state_of(snapshot_of(pool_of(evil, tasks=tasks, lanes=[lane_of(evil)], decisions=decisions)))
    for _ in range(2):
        text = "\n".join(drawn(state, 200))
        assert not {"\x1b", "\x07", "\u202e"} & set(text)
        assert r"\x1b[2J\x07\u202ename\n" in text
        state.toggle()


def test_no_answer_is_said_and_for_how_long() -> None:
    state = model.Model("waiting for process 4242")
    state.silent = 4.7
    lines = drawn(state)
    assert lines[:2] == [" no answer for 4 s", "waiting for process 4242"]
    assert len(lines) == 24
    # What is seen from outside may be more than fits.
    state.waiting = "\n".join(["waiting", *map(str, range(100))])
    assert len(drawn(state)) == 24
    state.update(snapshot_of(BUSY))
    assert " no answer for 4 s (figures of " in drawn(state)[0]
    state.silent = 0.5
    assert "no answer" not in drawn(state)[0]


def test_a_stack_shows_its_innermost_call_and_can_be_scrolled() -> None:
    stack = "".join(f"  line {number}\n" for number in range(50))
    state = state_of(snapshot_of(pool_of("web", tasks=[task_of("f", 1.0)])))
    state.toggle()
    assert drawn(state)[5] == "waiting for it…"
    state.update(snapshot_of(pool_of("web", tasks=[task_of("f", 2.0, stack=stack)])))
    lines = drawn(state)
    assert lines[4] == "STACK of f, web, thread thread_of_f (77), for 2.00 s"
    assert "  line 49" in lines
    assert "  line 1" not in lines
    state.move(-1000)
    assert "  line 0" in drawn(state)
    state.move(1)
    assert "  line 0" not in drawn(state)
    state.update(snapshot_of(pool_of("web")))
    assert drawn(state)[4] == "STACK of f, web, thread thread_of_f (77), which has ended"
    state.toggle()
    assert "(nothing)" in drawn(state)


def test_an_end_is_told_beside_the_keys() -> None:
    state = state_of(snapshot_of(pool_of("web", tasks=[task_of("f\x1b", 1.0)])))
    state.toggle()
    state.update(snapshot_of(pool_of("web")))
    lines = drawn(state, width=100)
    assert "(nothing)" in lines
    assert lines[23].endswith("has ended   j/k or arrows select   Enter stack   s sort by name   q quit")
    assert not any("\x1b" in line for line in lines)
    assert len(drawn(state, width=40)) == 24


def test_a_long_path_does_not_hide_the_line() -> None:
    stack = f'  File "/srv/{"long/" * 30}shop/bank.py", line 4711, in charge\n    wait()\n'
    state = state_of(snapshot_of(pool_of("web", tasks=[task_of("f", 1.0, stack=stack)])))
    state.toggle()
    line = drawn(state)[5]
    assert line.startswith('  File "…')
    assert line.endswith('long/shop/bank.py", line 4711, in charge')
    assert len(line) == 80


@pytest.mark.parametrize(
    ("values", "width", "top", "bars"),
    [
        ([], 3, 4, "   "),
        ([0, 0], 3, 4, "   "),
        ([1], 3, 4, "  ▂"),
        ([1, 4, 8], 3, 4, "▁▄█"),
        ([9, 1, 1000, 0], 3, 4, "▁█ "),
    ],
)
def test_sparklines(values: list[int], width: int, top: int, bars: str) -> None:
    assert view.sparkline(values, width, top) == bars


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0.00 s"), (9.99, "9.99 s"), (35.2, "35.2 s"), (100.0, "1m 40s"), (3599.0, "59m 59s"), (36061.0, "10h 01m")],
)
def test_durations(seconds: float, text: str) -> None:
    assert view.duration(seconds) == text
