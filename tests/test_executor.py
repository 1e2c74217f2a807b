"""AdaptiveExecutor: submitting, growing, cancelling, the hooks, and what goes wrong in between."""

from __future__ import annotations

import concurrent.futures
import inspect
import logging
import re
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis.stateful import run_state_machine_as_test
from support import seams
from support.common import LONG, TIMEOUT, Background, Boom, Gate, all_end, eventually, tight_switching
from support.loops import fail
from support.model import ExecutorModel, profile
from support.seams import executor_base

from ebbpool import AdaptiveExecutor


def test_the_executor_does_what_the_model_says() -> None:
    """A modest number of runs, the same every time; the stress session makes more, and others each time."""
    run_state_machine_as_test(ExecutorModel, settings=profile(50, derandomize=True, database=None))


def test_the_first_four_parameters_are_the_standard_ones() -> None:
    ours = list(inspect.signature(AdaptiveExecutor).parameters.values())
    theirs = list(inspect.signature(ThreadPoolExecutor).parameters)[:4]
    assert [parameter.name for parameter in ours[:4]] == theirs
    assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in ours[4:])
    limits = dict.fromkeys(("max_queue", "max_wait", "warn_after", "warn_lag", "leave_after"))
    sizes = {"min_workers": 0, "min_spare_workers": 0, "keep_alive": None, "thread_stack_size": None}
    ways = {"when_full": "block", "propagate_context": False, "daemon": False, "finalizer": None, "short_first": True}
    assert {parameter.name: parameter.default for parameter in ours[4:]} == limits | sizes | ways


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        ({"thread_name_prefix": None}, ()),
        ({"initargs": None}, ()),
        ({"initializer": True, "initargs": None}, ()),
        ({"initializer": True, "initargs": [1, 2]}, (1, 2)),
        ({"initializer": True, "initargs": (number for number in (1, 2))}, (1, 2)),
        ({"initializer": True, "initargs": "ab"}, ("a", "b")),
        ({"max_workers": 4.0}, ()),
    ],
)
def test_the_executor_takes_what_the_standard_class_takes(arguments: dict[str, Any], seen: tuple[Any, ...]) -> None:
    calls: list[tuple[Any, ...]] = []
    if "initializer" in arguments:
        arguments = arguments | {"initializer": lambda *given: calls.append(given)}
    with AdaptiveExecutor(**{"max_workers": 2, **arguments}) as pool:
        # Each thread has the same arguments, though an iterator gives them once.
        with Gate() as gate:
            gate.hold(pool, 2)
        assert type(pool._max_workers) is int
        assert pool.name.startswith("ebbpool-")
    assert calls == ([seen, seen] if "initializer" in arguments else [])


@pytest.mark.parametrize("name", sorted(executor_base.INSTEAD))
def test_what_a_subclass_overrides_in_vain_is_an_error(name: str) -> None:
    message = f"Own overrides {name}, which no AdaptiveExecutor calls: .*{executor_base.INSTEAD[name][:9]}"
    with pytest.raises(TypeError, match=message):
        type("Own", (AdaptiveExecutor,), {name: None})
    # It would also come first if it came from another base.
    with pytest.raises(TypeError, match=message):
        type("Own", (type("Mixin", (), {name: None}), AdaptiveExecutor), {})
    type("Own", (AdaptiveExecutor, type("Mixin", (), {name: None})), {"submit": ThreadPoolExecutor.submit})


def test_what_is_set_in_vain_is_an_error() -> None:
    with AdaptiveExecutor(2) as pool:
        for name in ("_work_queue", "_threads", "_adjust_thread_count"):
            with pytest.raises(AttributeError, match=f"{name} of an AdaptiveExecutor cannot be set: use "):
                setattr(pool, name, None)
        with pytest.raises(AttributeError):
            pool._threads.add(threading.current_thread())
        for views in (pool.lane("a", limit=2), pool.session()):
            with pytest.raises(AttributeError):
                views._max_workers = 3


def test_max_workers_may_be_set() -> None:
    with AdaptiveExecutor(1) as pool, Gate() as gate:
        pool._max_workers = 3
        gate.hold(pool, 3)
        assert (pool._max_workers, pool.stats().max_workers) == (3, 3)
        for value, error in ((0, ValueError), ("4", TypeError)):
            with pytest.raises(error, match="max_workers"):
                pool._max_workers = value


@pytest.mark.parametrize(
    "error", [Boom("no"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), BaseException("bare"), StopIteration(5)]
)
def test_whatever_a_task_or_a_callback_raises_the_worker_lives(error: BaseException) -> None:
    with AdaptiveExecutor(1, keep_alive=LONG) as pool:
        worker = pool.submit(threading.current_thread).result(TIMEOUT)
        future = pool.submit(fail, error)
        assert future.exception(TIMEOUT) is error
        with pytest.raises(type(error)):
            future.result(TIMEOUT)
        with Gate() as gate:
            gate.hold(pool)
            future = pool.submit(int, 7)
            future.add_done_callback(lambda _: fail(error))
        assert future.result(TIMEOUT) == 7
        assert pool.submit(threading.current_thread).result(TIMEOUT) is worker


def test_whoever_sees_that_a_task_is_done_sees_its_result() -> None:
    with AdaptiveExecutor(1, keep_alive=LONG) as pool, tight_switching():
        for number in range(200):
            ready = threading.Barrier(2)
            future = pool.submit(lambda ready=ready, number=number: (ready.wait(TIMEOUT), number)[1])
            ready.wait(TIMEOUT)
            while not future.done():
                pass
            assert future.result(timeout=0) == number


def test_a_worker_has_its_name_and_runs_the_initializer_first_and_the_finalizer_last() -> None:
    local = threading.local()
    finished: list[tuple[threading.Thread, str]] = []

    def prepare(value: str, *, factor: int = 2) -> None:
        local.value = value * factor + threading.current_thread().name

    def finish() -> None:
        finished.append((threading.current_thread(), local.value))

    def read() -> str:
        gate()
        return str(local.value)

    names = {"lookup_0", "lookup_1", "lookup_2"}
    with AdaptiveExecutor(3, "lookup", prepare, ("ab",), finalizer=finish) as pool, Gate() as gate:
        assert pool._thread_name_prefix == "lookup"
        futures = [pool.submit(read) for _ in range(3)]
        gate.await_begun(3)
        assert {thread.name for thread in gate.threads} == names
        gate.open()
        assert {future.result(TIMEOUT) for future in futures} == {f"abab{name}" for name in names}
        assert finished == []
    assert len(finished) == 3 and {thread for thread, _ in finished} == gate.threads
    assert all(value == f"abab{thread.name}" for thread, value in finished)
    with AdaptiveExecutor() as pool:
        name = pool.submit(threading.current_thread).result(TIMEOUT).name
        assert re.fullmatch(r"ebbpool-\d+_0", name)
        assert name == pool._thread_name_prefix + "_0"


def test_cancelling_a_queued_task_tells_the_waiters_at_once() -> None:
    ran: list[int] = []
    with AdaptiveExecutor(1) as pool, Gate() as gate:
        gate.hold(pool)
        future, calls = pool.submit(ran.append, 1), []
        future.add_done_callback(calls.append)
        waiting = [
            Background(lambda: concurrent.futures.wait([future], TIMEOUT)),
            Background(lambda: next(concurrent.futures.as_completed([future], TIMEOUT))),
        ]
        eventually(lambda: len(future._waiters) == 2)
        assert future.cancel() is True
        assert future._state == "CANCELLED_AND_NOTIFIED"
        assert calls == [future]
        assert [each.join() for each in waiting] == [({future}, set()), future]
        assert pool._work_queue.qsize() == 0
        with pytest.raises(CancelledError):
            future.result(timeout=0)
    assert ran == []


@pytest.mark.parametrize("error", [Boom("finalizer"), SystemExit(3)])
def test_a_failing_finalizer_is_logged_and_hurts_nobody(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.ERROR, "concurrent.futures"),
        AdaptiveExecutor(1, keep_alive=0.01, finalizer=lambda: fail(error)) as pool,
    ):
        worker = pool.submit(threading.current_thread).result(TIMEOUT)
        assert all_end([worker])
        assert pool.submit(int).result(TIMEOUT) == 0
    records = [record for record in caplog.records if record.name == "concurrent.futures"]
    assert len(records) == 2
    assert all(record.exc_info is not None and record.exc_info[1] is error for record in records)


def test_at_most_one_woken_worker_is_on_its_way() -> None:
    """A burst wakes one parked worker; each that arrives and leaves work behind wakes the next."""
    with AdaptiveExecutor(4, keep_alive=LONG) as pool:
        for _ in range(100):
            barrier = threading.Barrier(4)
            met = [pool.submit(barrier.wait, TIMEOUT) for _ in range(4)]
            assert sorted(future.result(TIMEOUT) for future in met) == [0, 1, 2, 3]
            eventually(lambda: pool.stats().running == 0, "all four are parked")
            on_their_way = []
            for _ in range(8):
                pool.submit(int)
                on_their_way.append(seams.engine_of(pool).staff.on_their_way())
            assert max(on_their_way) <= 1
            assert pool.wait_idle(TIMEOUT)


def test_a_slow_initializer_holds_up_nobody_else() -> None:
    barrier = threading.Barrier(2)
    with AdaptiveExecutor(2, initializer=barrier.wait, initargs=(TIMEOUT,)) as pool:
        futures = [pool.submit(pow, 2, number) for number in range(4)]
        assert [future.result(TIMEOUT) for future in futures] == [1, 2, 4, 8]
        assert not barrier.broken
