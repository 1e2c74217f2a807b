"""A call that raised has failed, whatever the class of its error overrides."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, NoReturn

import pytest
from support.common import TIMEOUT, Gate, eventually

from ebbpool import AdaptiveExecutor, fastthreadpool


def refuse(*_: object) -> NoReturn:
    raise LookupError("this is for nobody to call")


class Traceless(Exception):
    def with_traceback(self, trace: Any) -> None:  # type: ignore[override]
        super().with_traceback(trace)


class Hidden(Exception):
    __traceback__ = property(refuse)  # type: ignore[assignment]


class Posing(Exception):
    __class__ = property(lambda self: list)  # type: ignore[assignment]


class Classless(Exception):
    __class__ = property(refuse)  # type: ignore[assignment]


class Falsy(Exception):
    def __bool__(self) -> bool:
        return False

    def __len__(self) -> int:
        return 0


class Untrue(Exception):
    __bool__ = refuse  # type: ignore[assignment]


class Equal(Exception):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class Mute(Exception):
    __str__ = __repr__ = __reduce__ = __reduce_ex__ = refuse  # type: ignore[assignment]


class Broken(RuntimeError):
    def with_traceback(self, trace: Any) -> None:  # type: ignore[override]
        """Return nothing."""


PYPY = sys.implementation.name == "pypy"
KINDS = [Traceless, Posing, Classless, Falsy, Untrue, Equal, Mute, Broken]
if not PYPY:
    # There, to raise one reads its `__traceback__`.
    KINDS.append(Hidden)


def each_in_order(pool: AdaptiveExecutor, call: Callable[..., Any]) -> None:
    list(pool.map(call, range(3)))


def each_as_it_comes(pool: AdaptiveExecutor, call: Callable[..., Any]) -> None:
    list(pool.map_unordered(call, range(3), buffersize=2))


def yielded(pool: AdaptiveExecutor, call: Callable[..., Any]) -> None:
    def generate() -> Iterator[Any]:
        yield call()

    list(pool.stream(generate))


def in_a_session(pool: AdaptiveExecutor, call: Callable[..., Any]) -> None:
    with pool.session() as session:
        session.submit(call).result(TIMEOUT)


def in_a_loop(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `main` in a loop, and raise outside of it what it raises: asyncio itself does not end with some of these."""

    async def caught() -> list[BaseException]:
        try:
            await main()
        except BaseException as error:
            return [error]
        return []

    for error in asyncio.run(caught()):
        raise error


def awaited(pool: AdaptiveExecutor, call: Callable[..., Any]) -> None:
    async def main() -> None:
        await pool.run(call)

    in_a_loop(main)


def mapped_from_a_loop(pool: AdaptiveExecutor, call: Callable[..., Any]) -> None:
    async def main() -> None:
        async for _ in pool.amap(call, range(3)):
            pass

    in_a_loop(main)


def bridged(pool: AdaptiveExecutor, call: Callable[..., Any]) -> None:
    pytest.importorskip("anyio")
    import ebbpool.anyio

    async def main() -> None:
        await ebbpool.anyio.run_sync(call, executor=pool)

    in_a_loop(main)


def by_the_caller(pool: AdaptiveExecutor, call: Callable[..., Any]) -> None:
    with AdaptiveExecutor(1, max_queue=0, when_full="caller_runs") as full, Gate() as gate:
        gate.hold(full)
        full.submit(call).result(0)


WAYS = [
    lambda pool, call: pool.submit(call).result(TIMEOUT),
    lambda pool, call: pool.submit_later(0.0, call).result(TIMEOUT),
    lambda pool, call: pool.lane("lane", limit=1).submit(call).result(TIMEOUT),
    each_in_order,
    each_as_it_comes,
    yielded,
    in_a_session,
    awaited,
    mapped_from_a_loop,
    bridged,
    by_the_caller,
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_the_very_error_is_raised(way: Callable[..., Any], kind: type[Exception]) -> None:
    if PYPY and way in (awaited, mapped_from_a_loop, bridged):
        pytest.skip("the futures of asyncio, which are in Python there, ask the error itself")
    error = kind("no such key")

    def call(_: object = None) -> NoReturn:
        raise error

    caught: list[BaseException] = []
    with AdaptiveExecutor(2) as pool:
        try:
            way(pool, call)
        except BaseException as raised:
            caught.append(raised)
    assert [each is error for each in caught] == [True]


@pytest.mark.parametrize("kind", KINDS)
def test_a_schedule_goes_on_and_logs_it(kind: type[Exception], caplog: pytest.LogCaptureFixture) -> None:
    error, again = kind(), threading.Event()
    runs: list[None] = []

    def call() -> None:
        runs.append(None)
        if len(runs) > 1:
            again.set()
        else:
            raise error

    with caplog.at_level(logging.ERROR, "concurrent.futures"), AdaptiveExecutor(1) as pool:
        task = pool.schedule(0.01, call)
        assert again.wait(TIMEOUT)
        assert task.last_error is error
    # pytest may raise another for what it cannot write.
    told = caplog.records[0].exc_info
    assert told is not None
    assert told[1] is error


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("as_text", [False, True])
def test_a_job_of_a_fastthreadpool_has_failed(kind: type[Exception], as_text: bool) -> None:
    error = kind("no such key")

    def job(_: object) -> NoReturn:
        raise error

    pool = fastthreadpool.Pool(2, exc_stack=as_text)
    try:
        pool.map(job, range(1))
        eventually(lambda: len(pool.failed) == 1, "the failure")
        [failure] = pool.failed
        assert kind.__name__ in failure if as_text else failure is error
    finally:
        pool.shutdown()


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_a_callback_keeps_nobody_from_being_told(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytest raises what it cannot write.
    monkeypatch.setattr(logging.getLogger("concurrent.futures"), "disabled", True)
    told: list[object] = []

    def call(_: object) -> NoReturn:
        raise kind()

    with AdaptiveExecutor(1) as pool, Gate() as gate:
        future = pool.submit(gate)
        future.add_done_callback(call)
        future.add_done_callback(told.append)
        gate.open()
    assert told == [future]
