"""Warnings about tasks that run, or wait, for longer than they should, and how late event loops are."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from support import seams
from support.common import LONG, STACKS, TIMEOUT, Background, Gate, eventually, forked, gone, output_of, wait_for_idle
from support.loops import given_up
from support.manual_time import ManualTimekeeper

from ebbpool import AdaptiveExecutor, LoopLag


def warnings(caplog: pytest.LogCaptureFixture, of: str) -> list[str]:
    texts = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    return [text for text in texts if of in text]


def hang(gate: Gate) -> None:
    gate()


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> Iterator[ManualTimekeeper]:
    """What watches the pools of the test, which are told of what they warn of in its own thread."""
    monkeypatch.setattr(seams.late, "tell", lambda _, call: call())
    with seams.watched_by(keeper := ManualTimekeeper()):
        yield keeper


def test_a_task_that_runs_for_too_long_is_logged_once_with_its_stack(
    caplog: pytest.LogCaptureFixture, keeper: ManualTimekeeper
) -> None:
    with AdaptiveExecutor(2, "web", min_workers=2, warn_after=0.01) as pool, Gate() as gate:
        pool.submit(hang, gate)
        pool.lane("reports", limit=1).submit(hang, gate)
        gate.await_begun(2)
        for longer in 0.01, 0.1:
            eventually(lambda: min(task.seconds for task in pool.running()) > longer)  # noqa: B023  (used at once)
            keeper.settle()
            keeper.advance(1)
        texts = warnings(caplog, "has been running for")
        assert len(texts) == 2
        for text in texts:
            first, *stack = text.splitlines()
            assert first.startswith(f"{__name__}.hang in pool 'web'") and re.search(
                r" has been running for \d+\.\d s on ", first
            )
            assert any(("in hang" if STACKS else "(no stack") in line for line in stack)
        assert len(warnings(caplog, ", lane 'reports',")) == 1


def test_each_late_task_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with AdaptiveExecutor(1, keep_alive=LONG, warn_after=0.01) as pool:
        for count in range(1, 4):
            with Gate() as gate:
                gate.hold(pool)
                eventually(lambda: len(warnings(caplog, "has been running for")) == count)  # noqa: B023  (used at once)
            wait_for_idle(pool)
    assert len(warnings(caplog, "has been running for")) == 3


def test_a_queue_that_waits_for_too_long_is_logged_once(
    caplog: pytest.LogCaptureFixture, keeper: ManualTimekeeper
) -> None:
    with AdaptiveExecutor(1, "narrow", warn_after=0.01) as pool, Gate() as gate:
        given_up(gate.hold(pool))
        waiting = [pool.submit(abs, -1) for _ in range(3)]
        for longer in 0.01, 0.1:
            eventually(lambda: pool.stats().oldest_wait > longer)  # noqa: B023  (used at once)
            keeper.settle()
            keeper.advance(1)
        (text,) = warnings(caplog, "oldest, abs")
        assert re.match(
            r"\d tasks are waiting in pool 'narrow'; the oldest, abs, has waited \d+\.\d s; the pool .*; "
            r"abandoned calls have threads: .*Gate \(1\)$",
            text,
        )
        gate.open()
        assert [future.result(TIMEOUT) for future in waiting] == [1, 1, 1]


def test_looks_keep_their_time_whenever_workers_start_and_whatever_a_look_raises(
    keeper: ManualTimekeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[object] = []

    def look(_: object, crew: object) -> float:
        looks.append(crew)
        raise MemoryError

    monkeypatch.setattr(seams.late.SlowTasks, "_look", look)
    with AdaptiveExecutor(1, keep_alive=0, warn_after=5) as pool:
        for later, count in ((4, 0), (1, 1), (0, 1), (0, 1), (4, 1), (1, 2)):
            with Gate() as gate:
                gate.hold(pool)
                keeper.settle()
                keeper.advance(later)
                assert len(looks) == count
            eventually(lambda: pool.stats().workers == 0)


FORKS = {
    "a child warns of its own tasks": """
        import logging
        # Nobody hears of it if the task of the parent has to wait.
        logging.getLogger("concurrent.futures").addHandler(logging.NullHandler())
        pool = AdaptiveExecutor(warn_after=0.05)
        pool.submit(int).result(10)
        def check():
            told = threading.Event()
            class Handler(logging.Handler):
                def emit(self, record):
                    told.set()
            logging.getLogger("concurrent.futures").addHandler(Handler())
            assert pool.submit(told.wait, 10).result(20)
        print(in_child(check))
    """,
    "a process that a handler forks ends well": """
        import logging, multiprocessing
        context = multiprocessing.get_context("fork")
        over = threading.Event()
        class Forking(logging.Handler):
            def emit(self, record):
                if over.is_set():
                    return  # that the task waited before it ran
                process = context.Process(target=int)
                process.start()
                process.join()
                print(process.exitcode)
                over.set()
        logging.getLogger("concurrent.futures").addHandler(Forking())
        with AdaptiveExecutor(1, warn_after=0.01) as pool:
            pool.submit(over.wait, 60).result()
    """,
}


@pytest.mark.parametrize("script", FORKS.values(), ids=FORKS)
def test_fork(script: str) -> None:
    assert forked(script) == ["0"]


def test_a_handler_may_need_a_pool_that_needs_the_timekeeper(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []

    def emit(record: logging.LogRecord) -> None:
        # On a busy machine there are two: the task may have waited, too.
        if not sent:
            sent.append(other.submit_later(0.0, int).result(TIMEOUT))

    with AdaptiveExecutor(warn_after=0.01) as pool, AdaptiveExecutor() as other, Gate() as gate:
        monkeypatch.setattr(logging.getLogger("concurrent.futures"), "handle", emit)
        gate.hold(pool)
        eventually(lambda: sent == [0])


WARNING = """
    import logging, threading
    from ebbpool import AdaptiveExecutor
    from support import seams
    begun = threading.Event()
    def handle(record):
        before_it_is_written()
        print("told", flush=True)
    logging.getLogger("concurrent.futures").handle = handle
    seams.setting(wait_for_warnings=20)
    def warn():
        AdaptiveExecutor(warn_after=0.01).submit(begun.wait).result()
"""


def test_the_exit_waits_until_one_is_written() -> None:
    lines = output_of(
        """
        awaited = threading.Event()
        def before_it_is_written():
            (thread,) = [each for each in threading.enumerate() if each.name == "ebbpool-warnings"]
            join = thread.join
            thread.join = lambda timeout: (awaited.set(), join(timeout))
            begun.set()
            awaited.wait()
        warn()
        """,
        WARNING,
    )
    assert lines == ["told"]


def test_the_exit_does_not_wait_for_one_that_is_stuck() -> None:
    lines = output_of(
        """
        def before_it_is_written():
            begun.set()
            threading.Event().wait()
        seams.setting(wait_for_warnings=0.01)
        warn()
        print("over")
        """,
        WARNING,
    )
    assert lines == ["over"]


LOOP_CALLS = seams.running_part("loop_calls")
SPELL, SPELLS = LOOP_CALLS.SPELL, LOOP_CALLS.SPELLS


def mailbox() -> Any:
    """Return that of a loop that comes when the test lets it, under an injected clock; its results are dropped."""
    callbacks: list[Callable[[], None]] = []
    made = LOOP_CALLS.Mailbox(*[lambda *call: callbacks.append(partial(*call))] * 2, object)
    seams.late.register(made)
    return made


def note(mailbox: Any, now: float, *seconds: float) -> None:
    for one in seconds:
        mailbox.note(now - one, now)


def test_half_of_the_times_are_below_one_figure_and_99_in_100_below_the_other() -> None:
    loop = mailbox()
    note(loop, 1000.0, *[0.001] * 60, *[0.010] * 38, *[0.200] * 2)
    [lag] = seams.late.lags(1000.0)
    assert lag.name == threading.current_thread().name
    assert [lag.p50, lag.p99] == pytest.approx([0.001, 0.200], rel=0.1)
    assert lag.most == pytest.approx(0.200)


def test_a_minute_of_all_loops_of_one_name_that_live_is_looked_back_upon() -> None:
    def most(after: float) -> list[float]:
        return [lag.most for lag in seams.late.lags(1000.0 + after)]

    loop = mailbox()
    note(loop, 1000.0, 0.5)
    note(loop, 1000.0 + (SPELLS - 1) * SPELL, 0.001)
    assert most((SPELLS - 1) * SPELL) == pytest.approx([0.5])
    assert most(SPELLS * SPELL) == pytest.approx([0.001]), "while nothing comes"
    note(loop, 1000.0 + SPELLS * SPELL, 0.002)
    assert most(SPELLS * SPELL) == pytest.approx([0.002])
    assert most(3 * SPELLS * SPELL) == []
    note(loop, 1000.0 + 5 * SPELLS * SPELL, 0.003)
    assert most(5 * SPELLS * SPELL) == pytest.approx([0.003])
    other = mailbox()
    note(other, 1000.0 + 5 * SPELLS * SPELL, 0.3)
    assert most(5 * SPELLS * SPELL) == pytest.approx([0.3])
    reference = weakref.ref(other)
    del other
    gone(reference)
    assert most(5 * SPELLS * SPELL) == pytest.approx([0.003])


def test_figures_are_read_while_a_loop_notes_others() -> None:
    loop = mailbox()
    note(loop, 1000.0, 0.001)
    over = threading.Event()

    def keep_noting() -> None:
        now = 1000.0
        while not over.is_set():
            now += SPELL
            note(loop, now, 0.001)

    noting = Background(keep_noting)
    try:
        for _ in range(300):
            for lag in seams.late.lags(loop.turn - 1.0):
                # As time goes on, its difference is less exact.
                assert lag.most == pytest.approx(0.001, rel=0.01)
    finally:
        over.set()
        noting.join()


def test_a_loop_that_is_held_up_shows_in_the_figures_of_its_pools() -> None:
    held = threading.Event()

    async def main(pool: AdaptiveExecutor) -> tuple[LoopLag, ...]:
        await pool.run(int)
        before = pool.stats().loop_lag
        with Gate() as gate:
            future = pool.run(gate)
            gate.await_begun()
            gate.open()
            # The loop's thread itself is kept busy until the result has been there for a while.
            pool.submit(int).result()
            held.wait(before[0].most + 0.1)
            await future
        after = pool.stats().loop_lag
        assert after[0].most > before[0].most
        return after

    with AdaptiveExecutor(1) as pool:
        [lag] = asyncio.run(main(pool))
        assert lag.most > 0.1 * 0.9
        assert lag.p50 <= lag.p99 <= lag.most


def stand_still_until(done: Callable[[], object]) -> None:
    eventually(done)


def compute_until(over: threading.Event) -> None:
    while not over.is_set():
        sum(range(1_000))


def test_a_loop_that_does_not_come_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main(pool: AdaptiveExecutor) -> None:
        stands_still = threading.Event()
        future = pool.run(stands_still.wait, TIMEOUT)
        stand_still_until(lambda: stands_still.set() or warnings(caplog, ""))
        # Two more looks find it waiting still.
        looks = pool.submit_later(0.02, int)
        looks.result()
        await future

    with AdaptiveExecutor(warn_lag=0.01) as pool:
        asyncio.run(main(pool))
    [text] = warnings(caplog, "The event loop in MainThread has not responded for ")
    assert ("in stand_still_until" if STACKS else "(no stack") in text


def test_the_thread_that_computed_most_while_a_loop_was_late_is_named(caplog: pytest.LogCaptureFixture) -> None:
    over = threading.Event()

    def named() -> bool:
        return any("compute_until used the most" in text for text in warnings(caplog, ""))

    async def main(pool: AdaptiveExecutor) -> None:
        computing = pool.run(compute_until, over)
        try:
            # Each time that the loop is late there is one warning; on a busy machine another thread may compute most.
            while not named():
                told = len(warnings(caplog, ""))
                future = pool.run(int)
                stand_still_until(lambda: len(warnings(caplog, "")) > told)  # noqa: B023  # it is called here
                await future
        finally:
            over.set()
            await computing

    with AdaptiveExecutor(thread_name_prefix="web", warn_lag=0.05) as pool:
        asyncio.run(main(pool))


def test_a_loop_is_late_from_the_limit_on_only_once_and_only_while_it_runs() -> None:
    late = seams.late.late_loops

    def rung() -> float:
        eventually(lambda: any(mailbox.rings > mailbox.come for _, mailbox, _ in seams.late._alive()))
        [since] = [mailbox.rung for _, mailbox, _ in seams.late._alive() if mailbox.rings > mailbox.come]
        return float(since)

    async def main(pool: AdaptiveExecutor) -> None:
        future = pool.run(int)
        since = rung()
        assert late(since + 0.03, 0.05) == ([], pytest.approx(0.03))
        [(thread, seconds)], _ = late(since + 0.06, 0.05)
        assert (thread.name, seconds) == (threading.current_thread().name, pytest.approx(0.06))
        assert late(since + 0.07, 0.05) == ([], 0.0), "it has been told of"
        await future
        assert late(since + 99.0, 0.05) == ([], 0.0), "it has come"

    async def hand_in(pool: AdaptiveExecutor, gate: Gate) -> None:
        pool.run(gate)
        gate.await_begun()

    with AdaptiveExecutor(1) as pool, Gate() as gate, asyncio.Runner() as runner:
        runner.run(main(pool))
        runner.run(hand_in(pool, gate))
        gate.open()
        assert late(rung() + 99.0, 0.05) == ([], 0.0), "nobody waits for it"
        runner.run(asyncio.sleep(0))
