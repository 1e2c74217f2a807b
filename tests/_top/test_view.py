"""What `top` remembers from snapshot to snapshot, what keys do to it, and what it draws for a width and a height."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("rich")

from rich import console as rich_console
from support.monitor import view

from ebbpool import AdaptiveExecutor, monitor

with AdaptiveExecutor(256) as _pool:
    _lane = _pool.lane("lane", limit=4)
    (POOL,) = [each for each in monitor.snapshot()["pools"] if each["name"] == _pool.name]
    (LANE,) = POOL.pop("lanes")


def pool_of(name: str, **figures: Any) -> dict[str, Any]:
    return POOL | {"name": name, "lanes": []} | figures


def lane_of(name: str, **figures: Any) -> dict[str, Any]:
    return LANE | {"name": name} | figures


def task_of(name: str, seconds: float, **figures: Any) -> dict[str, Any]:
    odd = dict.fromkeys(("blocked", "abandoned", "short"), False)
    fixed = {"lane": None, "thread": f"thread_of_{name}", "native_id": 77, "stack": None}
    return odd | fixed | {"name": name, "seconds": seconds} | figures


def snapshot_of(*pools: dict[str, Any], time: float = 1000.0) -> dict[str, Any]:
    return {
        "ebbpool": "0.1.0",
        "pid": 4242,
        "python": "CPython 3.13.0 (GIL on)",
        "time": time,
        "pools": list(pools),
        "others": [],
    }


BUSY = pool_of(
    "web",
    workers=12,
    running=9,
    idle=3,
    blocked=2,
    queued=7,
    oldest_wait=1.25,
    max_queue=100,
    lanes=[lane_of("images", limit=6, running=6, queued=3, oldest_wait=61.0)],
    tasks=[task_of("quick", 0.01, lane="images"), task_of("slow", 3700.0), task_of("middle", 35.22, blocked=True)],
    decisions=[{"at": 999.0, "workers": 8, "grown": 4, "reason": "grew by 4: 12 waiting, processors 31% used"}],
)


def drawn(state: Any, width: int = 80, height: int = 24, **how: Any) -> list[str]:
    """Return the lines of the screen, without the blanks at their ends."""
    console = rich_console.Console(file=io.StringIO(), width=width, height=height, color_system=None)
    console.print(view.screen(state, width, height, **how), crop=not how)
    lines = console.file.getvalue().split("\n")[:-1]
    assert how or all(len(line) <= width for line in lines), lines
    return [line.rstrip() for line in lines]


def state_of(*snapshots: dict[str, Any]) -> Any:
    state = view.Model()
    for each in snapshots:
        state.update(each)
    return state


def web(*tasks: dict[str, Any], **figures: Any) -> dict[str, Any]:
    return snapshot_of(pool_of("web", tasks=list(tasks), **figures))


def chosen(state: Any) -> str:
    (line,) = [line for line in drawn(state) if line.startswith("▸")]
    return line.split()[1]


def test_the_screen_of_a_busy_process() -> None:
    before = pool_of("web", workers=4, completed=0, lanes=[lane_of("images")])
    lines = drawn(state_of(snapshot_of(before, time=998.0), snapshot_of(BUSY | {"completed": 300, "failed": 20})))
    assert len(lines) == 24
    assert lines[0].startswith("pid 4242  1 pool, 12 threads  ")
    assert lines[0].endswith("  CPython 3.13.0 (GIL on)  ebbpool 0.1.0")
    assert lines[1].split() == ["POOL", "THREADS", "BUSY", "BLOCKED", "WAIT", "OLDEST", "DONE/s"]
    assert lines[2].split() == ["web", "12/256", "▃█", "9", "2", "7/100", "█", "1.25", "s", "160"]
    assert lines[3].split() == ["└", "images", "6/6", "█", "6", "3", "▆", "61.0", "s", "0"]
    assert lines[5].split() == ["RUNNING", "3", "POOL", "THREAD", "FOR"]
    assert lines[6].split() == ["▸", "slow", "web", "thread_of_slow", "1h", "01m"]
    assert lines[7].split() == ["middle", "web", "thread_of_middle", "blocked", "35.2", "s"]
    assert lines[8].split() == ["quick", "web/images", "thread_of_quick", "0.01", "s"]
    assert lines[10] == "SIZING"
    assert lines[11].endswith("  web  8→12  grew by 4: 12 waiting, processors 31% used")
    assert lines[23] == "j/k or arrows select   Enter stack   q quit"


def test_an_idle_process_and_one_with_threads_of_no_pool() -> None:
    lines = drawn(state_of(snapshot_of()))
    assert (lines[2], lines[5], len(lines)) == ("(no pool)", "(nothing)", 24)
    lines = drawn(
        state_of(snapshot_of(BUSY) | {"others": ["MainThread", "stranger"]}),
    )
    assert "  2 other threads" in lines[0]


@pytest.mark.parametrize("width", [60, 80, 100, 120])
@pytest.mark.parametrize("silent", [0.0, 4.0])
def test_no_figure_is_cut(width: int, silent: float) -> None:
    lags = [{"name": name, "p99": 0.0078} for name in ("asyncio", "asyncio-2", "asyncio-3")]
    lane = lane_of("asyncio", limit=1_000_000, running=250, queued=11998, oldest_wait=40_000.0, expired=7)
    figures = {"workers": 256, "running": 256, "queued": 11998, "expired": 11998, "oldest_wait": 1000.0}
    busy = pool_of("web", loop_lag=lags, lanes=[lane], tasks=[task_of("slow", 36_000.0, abandoned=True)], **figures)
    state = state_of(snapshot_of(busy), snapshot_of(busy | {"completed": 12345}, time=1001.0))
    state.silent = silent
    head, titles, pool, lane_line, _, _, task, *_ = drawn(state, width)
    assert "…" not in head and head.count("late") == head.count("late 7.8 ms")
    assert ("  loop in asyncio late 7.8 ms" in head) == (width >= (100 if silent else 60))
    assert titles.split()[-3:] == ["OLDEST", "EXPIRED", "DONE/s"]
    assert pool.endswith(f" 16m 40s {'11998':>7} {'12345':>6}")
    assert "250/256" in lane_line and lane_line.endswith(f" 11h 06m {'7':>7} {'0':>6}")
    assert task.endswith(" abandoned 10h 00m")


def test_what_came_too_late_what_nobody_waits_for_and_what_went_first_is_marked() -> None:
    tasks = [task_of("f", 1.0, abandoned=True, short=True), task_of("g", 0.5, short=True)]
    late = pool_of("web", expired=12, lanes=[lane_of("images")], tasks=tasks)
    lines = drawn(state_of(snapshot_of(late, pool_of("quick", expired=0))))
    assert lines[1].split() == ["POOL", "THREADS", "BUSY", "BLOCKED", "WAIT", "OLDEST", "EXPIRED", "DONE/s"]
    assert [line.split()[-2] for line in lines[2:5]] == ["12", "0", "0"]
    assert lines[7].split() == ["▸", "f", "web", "thread_of_f", "abandoned", "1.00", "s"]
    assert lines[8].split() == ["g", "web", "thread_of_g", "first", "0.50", "s"]
    assert "EXPIRED" not in drawn(state_of(snapshot_of(BUSY)))[1]


def test_without_keys_nothing_is_chosen_or_explained_and_stacks_may_follow() -> None:
    reason = "grew by 4: 12 waiting, " + "x" * 100
    decisions = [BUSY["decisions"][0] | {"reason": reason}]
    lines = drawn(state_of(snapshot_of(BUSY | {"decisions": decisions})), height=view.UNLIMITED, keys=False)
    assert len(lines) == 12 and lines[-1].endswith(reason)
    assert not any("▸" in line or "quit" in line or "DONE/s" in line for line in lines)
    stack = '  File "app.py", line 1, in f\n    ' + "x" * 100 + "\n"
    lines = drawn(state_of(web(task_of("f", 1.0, stack=stack))), height=view.UNLIMITED, keys=False, stacks=True)
    assert {"STACK of f, web, thread thread_of_f (77), for 1.00 s", "    " + "x" * 100} <= set(lines)


@pytest.mark.parametrize("height", [8, 12, 24, 60])
@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_the_screen_fits_any_terminal(width: int, height: int) -> None:
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
    state.notice = evil
    for _ in range(2):
        text = "\n".join(drawn(state, 200))
        assert not {"\x1b", "\x07", "\u202e"} & set(text)
        assert r"\x1b[2J\x07\u202ename\n" in text
        state.toggle()


def test_no_answer_is_said_and_for_how_long() -> None:
    state = view.Model("waiting for process 4242")
    state.silent = 4.7
    lines = drawn(state)
    assert lines[:2] == [" no answer for 4 s", "waiting for process 4242"]
    assert len(lines) == 24
    state.update(snapshot_of(BUSY))
    assert " no answer for 4 s (figures of " in drawn(state)[0]
    state.silent = 0.5
    assert "no answer" not in drawn(state)[0]


def test_the_longest_come_first() -> None:
    tasks = [task_of("one", 1.0), task_of("nine", 9.0)]
    state = state_of(snapshot_of(pool_of("b", tasks=tasks), pool_of("a", tasks=[task_of("five", 5.0)])))
    assert [task["name"] for task in state.tasks()] == ["nine", "five", "one"]


def test_the_choice_stays_with_its_task() -> None:
    state = view.Model()
    state.move(1)
    state.toggle()
    assert state.opened is None
    state.update(web(task_of("a", 3.0), task_of("b", 2.0), task_of("c", 1.0)))
    state.move(1)
    assert chosen(state) == "b"
    state.update(web(task_of("new", 9.0), task_of("a", 4.0), task_of("b", 3.0)))
    assert chosen(state) == "b"
    state.update(web(task_of("new", 10.0)))
    assert chosen(state) == "new"
    state.move(-5)
    state.update(web(task_of("newer", 99.0), task_of("new", 11.0)))
    assert chosen(state) == "newer"


def test_a_stack_shows_its_innermost_call_and_can_be_scrolled() -> None:
    stack = "".join(f"  line {number}\n" for number in range(50))
    state = state_of(web(task_of("f", 1.0)))
    state.toggle()
    assert drawn(state)[5] == "waiting for it…"
    state.update(web(task_of("f", 2.0, stack=stack)))
    lines = drawn(state)
    assert lines[4] == "STACK of f, web, thread thread_of_f (77), for 2.00 s"
    assert "  line 49" in lines and "  line 1" not in lines
    state.move(-1000)
    assert "  line 0" in drawn(state)
    state.move(1)
    assert "  line 0" not in drawn(state)
    # Another run of the same function is not the task that was opened.
    state.update(web(task_of("f", 0.1, stack="of another run")))
    lines = drawn(state)
    assert lines[4] == "STACK of f, web, thread thread_of_f (77), which has ended" and "of another run" not in lines
    state.toggle()
    assert any("RUNNING 1" in line for line in drawn(state))


@pytest.mark.parametrize(
    ("after", "key"),
    [
        ([], lambda state: state.move(1)),
        ([task_of("a", 0.1)], lambda state: state.move(-1)),
        ([task_of("b", 1.0)], view.Model.toggle),
    ],
)
def test_a_task_that_ends_before_its_stack_comes_leads_back_to_the_list_and_is_named_until_the_next_key(
    after: list[dict[str, Any]], key: Callable[[Any], None]
) -> None:
    state = state_of(web(task_of("a", 3.0), task_of("c", 1.0)))
    state.toggle()
    for seconds in (2.0, 3.0):
        state.update(web(*after, task_of("c", seconds)))
        lines = drawn(state, width=100)
        assert lines[23] == "a has ended   j/k or arrows select   Enter stack   q quit"
        assert any("RUNNING" in line for line in lines)
        assert len(drawn(state, width=40)) == 24
    key(state)
    assert "has ended" not in drawn(state)[23]


def test_a_long_path_does_not_hide_the_line() -> None:
    stack = f'  File "/srv/{"long/" * 30}shop/bank.py", line 4711, in charge\n    wait()\n'
    state = state_of(web(task_of("f", 1.0, stack=stack)))
    state.toggle()
    line = drawn(state)[5]
    assert line.startswith('  File "…') and line.endswith('long/shop/bank.py", line 4711, in charge')
    assert len(line) == 80


def test_what_is_done_a_second_and_a_bounded_history() -> None:
    state = state_of(web(completed=10, lanes=[lane_of("x")]) | {"time": 10.0})

    def rates() -> list[str]:
        return [line.split()[-1] for line in drawn(state)[2 : 2 + len(state.rows)]]

    assert rates() == ["-", "-"]
    state.update(web(completed=20, failed=5, cancelled=1, lanes=[lane_of("x", completed=4)]) | {"time": 12.0})
    assert rates() == ["8", "2"]
    # A pool that is gone, and another that took its name.
    state.update(web(completed=1) | {"time": 13.0})
    assert rates() == ["0"]
    for number in range(view.HISTORY + 5):
        state.update(web(workers=number, queued=2 * number))
    row = state.rows["web",]
    assert (len(row.threads), row.threads[0], row.waiting[-1]) == (view.HISTORY, 5, 2 * (view.HISTORY + 4))


def test_decisions_of_all_pools_are_in_order() -> None:
    first = {"at": 1.0, "workers": 0, "grown": 1, "reason": "x"}
    pools = pool_of("a", decisions=[first, first | {"at": 3.0}]), pool_of("b", decisions=[first | {"at": 2.0}])
    lines = drawn(state_of(snapshot_of(*pools)))
    place = lines.index("SIZING")
    assert [line.split()[1] for line in lines[place + 1 : place + 4]] == ["a", "b", "a"]
    assert "(nothing yet)" in drawn(state_of(snapshot_of(pool_of("a"))))


def test_repeats_of_a_reason_are_one_line_until_the_pool_grows() -> None:
    reasons = ["4 waiting, calls of f are short", "5 waiting, calls of f2 are short", "6 waiting, calls of f are short"]
    stayed = [{"workers": 8, "grown": 0, "reason": f"stayed at 8: {reason}"} for reason in reasons]
    grew = {"workers": 8, "grown": 1, "reason": "grew by 1: 9 waiting"}
    decisions = [each | {"at": float(at)} for at, each in enumerate([*stayed, grew, grew, stayed[0]])]
    lines = drawn(state_of(snapshot_of(pool_of("a", decisions=decisions))))
    found = [line.partition("  a  ")[2] for line in lines[lines.index("SIZING") + 1 :]]
    assert found[:6] == [
        "8  stayed at 8: 5 waiting, calls of f2 are short",
        "8  2 times stayed at 8: 6 waiting, calls of f are short",
        "8→9  grew by 1: 9 waiting",
        "8→9  grew by 1: 9 waiting",
        "8  stayed at 8: 4 waiting, calls of f are short",
        "",
    ]


def test_bars_and_times() -> None:
    for values, bars in {(): "   ", (0, 0): "   ", (1,): "  ▂", (1, 4, 8): "▁▄█", (9, 1, 1000, 0): "▁█ "}.items():
        assert view.sparkline(values, 3, 4) == bars
    times = {0.0: "0.00 s", 9.99: "9.99 s", 35.2: "35.2 s", 100.0: "1m 40s", 3599.0: "59m 59s", 36061.0: "10h 01m"}
    assert {seconds: view.duration(seconds) for seconds in times} == times
