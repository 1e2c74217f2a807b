"""Without a GIL the frames of other threads are not read, and every report says so; names need no frames."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextvars import copy_context

import pytest
from support.common import A_MOMENT, TIMEOUT, Background, Boom, Gate, ToldLock, fail, needs_fork, output_of
from support.seams import COLLECTS, UNREADABLE, frames, is_joined

from ebbpool import AdaptiveExecutor
from ebbpool.testing import no_thread_leaks


@pytest.fixture(autouse=True)
def no_gil(monkeypatch: pytest.MonkeyPatch) -> None:
    def current_frames() -> None:
        raise AssertionError("the frames of other threads were read")

    monkeypatch.setattr(sys, "_current_frames", current_frames)
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)


def test_a_task_is_named_and_the_line_says_why_it_has_no_stack() -> None:
    with AdaptiveExecutor() as pool, Gate() as gate:
        gate.hold(pool)
        pool.submit(copy_context().run, gate)
        gate.await_begun()
        assert {task.name for task in pool.running()} == {"support.common.Gate"}
        assert [task.stack for task in pool.running(stacks=True)] == [UNREADABLE] * 2
        with pytest.raises(TimeoutError) as caught:
            pool.shutdown(timeout=0)
    assert str(caught.value).count(UNREADABLE) == 2


def test_a_thread_that_was_left_is_named_and_nobody_is_seen_to_wait_for_one() -> None:
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait, name="left-behind", daemon=True)
    with pytest.raises(AssertionError, match="left-behind") as caught, no_thread_leaks(grace=0):
        thread.start()
    gate.set()
    thread.join(TIMEOUT)
    assert UNREADABLE.strip() in str(caught.value)
    assert not is_joined(threading.main_thread()), "nobody is seen to wait for a thread"


collects = pytest.mark.skipif(not COLLECTS, reason="making a frame's object runs no collector")


class Frame:
    """A frame of another thread: who reads its next one first does so when the test says."""

    f_code = f_lineno = None

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.first = iter([gate])
        self.collects: list[bool] = []

    @property
    def f_back(self) -> None:
        next(self.first, int)()
        self.collects.append(gc.isenabled())


@pytest.fixture
def frame(monkeypatch: pytest.MonkeyPatch) -> Iterator[Frame]:
    with Gate() as gate:
        made = Frame(gate)
        monkeypatch.setattr(sys, "_current_frames", lambda: made.collects.append(gc.isenabled()) or {1: made})
        monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True, raising=False)
        yield made


@collects
def test_nothing_is_collected_while_frames_are_read(frame: Frame, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = ToldLock(frames._reading)
    monkeypatch.setattr(frames, "_reading", lock)
    first, second = (Background(lambda: is_joined(threading.main_thread())) for _ in range(2))
    frame.gate.await_begun()
    lock.await_all(2)
    assert not gc.isenabled()
    frame.gate.open()
    assert not first.join() and not second.join() and gc.isenabled()
    gc.disable()
    try:
        assert not is_joined(threading.main_thread()) and not gc.isenabled()
    finally:
        gc.enable()
    assert frame.collects == [False] * 6
    disable = gc.disable
    monkeypatch.setattr(gc, "disable", lambda: disable() or fail())
    with pytest.raises(Boom):
        is_joined(threading.main_thread())
    assert gc.isenabled(), "a signal has come as it was turned off"


@collects
def test_a_finaliser_at_the_very_end_waits_for_no_daemon_that_was_reading() -> None:
    script = """
    import os, sys, threading, types
    from support.seams import is_joined
    main, begun = threading.main_thread(), threading.Event()
    sys._current_frames = lambda: {} if begun.is_set() else (begun.set(), threading.Event().wait())
    threading.Thread(target=is_joined, args=(main,), daemon=True).start()
    begun.wait(10)
    class Last:
        def __del__(self, tell=lambda: os.write(1, b"%d\\n" % is_joined(main))):
            tell()
    module = sys.modules["last"] = types.ModuleType("last")
    module.last = Last()
    del module
    """
    assert output_of(script) == ["0"]


@needs_fork
@collects
def test_a_child_that_was_forked_meanwhile_collects_and_reads(frame: Frame) -> None:
    def fork() -> int:
        child = os.fork()
        if child == 0:
            os._exit(gc.isenabled() and Background(lambda: is_joined(threading.main_thread())).over.wait(TIMEOUT))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    reading = Background(lambda: is_joined(threading.main_thread()))
    frame.gate.await_begun()
    forking = Background(fork)
    # The hook before a fork waits for the reader in C code, where nothing shows it.
    assert not forking.over.wait(A_MOMENT)
    frame.gate.open()
    assert forking.join() == 1 and not reading.join()
