"""Without a GIL the frames of other threads are not read, and every report says so; names need no frames."""

from __future__ import annotations

import gc
import io
import sys
import threading
from contextvars import copy_context

import pytest
from support.common import TIMEOUT, Gate
from support.seams import UNREADABLE, is_joined

from ebbpool import AdaptiveExecutor
from ebbpool.monitor import dump
from ebbpool.testing import no_thread_leaks


@pytest.fixture(autouse=True)
def no_gil(monkeypatch: pytest.MonkeyPatch) -> None:
    def current_frames() -> None:
        raise AssertionError("the frames of other threads were read")

    monkeypatch.setattr(sys, "_current_frames", current_frames)
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)


def test_a_task_is_named_and_the_line_says_why_it_has_no_stack() -> None:
    out = io.StringIO()
    with AdaptiveExecutor() as pool, Gate() as gate:
        gate.hold(pool)
        pool.submit(copy_context().run, gate)
        gate.await_begun()
        assert {task.name for task in pool.running()} == {"support.common.Gate"}
        assert [task.stack for task in pool.running(stacks=True)] == [UNREADABLE] * 2
        dump(out)
        with pytest.raises(TimeoutError) as caught:
            pool.shutdown(timeout=0)
    assert out.getvalue().count(UNREADABLE.strip()) == str(caught.value).count(UNREADABLE) == 2


def test_a_thread_that_was_left_is_named_and_nobody_is_seen_to_wait_for_one() -> None:
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait, name="left-behind", daemon=True)
    with pytest.raises(AssertionError, match="left-behind") as caught, no_thread_leaks(grace=0):
        thread.start()
    gate.set()
    thread.join(TIMEOUT)
    assert UNREADABLE.strip() in str(caught.value)
    assert not is_joined(threading.main_thread()), "nobody is seen to wait for a thread"


def test_nothing_is_collected_while_frames_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[bool] = []
    monkeypatch.setattr(sys, "_current_frames", lambda: collected.append(gc.isenabled()) or {})
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True, raising=False)
    assert gc.isenabled() and not is_joined(threading.main_thread()) and gc.isenabled()
    gc.disable()
    try:
        assert not is_joined(threading.main_thread()) and not gc.isenabled()
    finally:
        gc.enable()
    assert collected == [False, False]
