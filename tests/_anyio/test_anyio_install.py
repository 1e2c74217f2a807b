"""`ebbpool.anyio.install` and `uninstall`."""

from __future__ import annotations

import asyncio
import importlib.metadata
import sys
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from anyio import to_thread
from anyio._backends._asyncio import AsyncIOBackend
from anyio.to_thread import run_sync as imported_before
from support.anyio import Way, asyncio_side, missing
from support.common import fail, output_of, run_script, thread_name

import ebbpool.anyio
from ebbpool import AdaptiveExecutor
from ebbpool.anyio import UnsupportedVersion, install, uninstall


@pytest.fixture
def pool() -> Iterator[AdaptiveExecutor]:
    with AdaptiveExecutor(thread_name_prefix="ours") as executor:
        yield executor


@pytest.fixture(autouse=True)
def nothing_installed() -> Iterator[None]:
    before = stock()
    yield
    assert stock() == before
    with pytest.raises(RuntimeError, match="not installed"):
        uninstall()


def stock() -> list[object]:
    return [vars(to_thread)["get_async_backend"], vars(AsyncIOBackend)["run_sync_in_worker_thread"]]


@pytest.mark.anyio
async def test_install_reaches_a_caller_that_imported_run_sync_before(pool: AdaptiveExecutor) -> None:
    assert not (await imported_before(thread_name)).startswith("ours")
    with install(pool):
        assert (await imported_before(thread_name)).startswith("ours")
        assert (await to_thread.run_sync(thread_name)).startswith("ours")
    assert not (await imported_before(thread_name)).startswith("ours")


def test_install_twice(pool: AdaptiveExecutor) -> None:
    with install(pool), AdaptiveExecutor() as other:
        for executor, keep in ((other, False), (pool, True), (None, True)):
            with pytest.raises(RuntimeError, match=r"already installed: .*'ours'.*; call ebbpool.anyio.uninstall\(\) "):
                install(executor, keep_default_limiter=keep)
        with install(), install(pool):
            pass
        assert anyio.run(to_thread.run_sync, thread_name).startswith("ours")


def test_an_executor_that_has_been_shut_down() -> None:
    with AdaptiveExecutor(thread_name_prefix="ended") as ended:
        pass
    with pytest.raises(RuntimeError, match=r"executor must be open, not <AdaptiveExecutor 'ended' .*, shut down>"):
        install(ended)
    assert not anyio.run(to_thread.run_sync, thread_name).startswith("ended")


@pytest.mark.parametrize("executor", [17, "pool", AdaptiveExecutor])
def test_an_executor_of_another_kind(executor: Any) -> None:
    with pytest.raises(TypeError, match=r"executor must be an ebbpool\.AdaptiveExecutor or None, not"):
        install(executor)


def test_somebody_else_has_replaced_it_since(pool: AdaptiveExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    installation = install(pool)
    with monkeypatch.context() as other:
        other.setattr(to_thread, "get_async_backend", lambda: None)
        with pytest.raises(RuntimeError, match=r"anyio\.to_thread\.get_async_backend has been replaced since"):
            uninstall()
    assert anyio.run(to_thread.run_sync, thread_name).startswith("ours")
    assert repr(installation).startswith("<ebbpool.anyio.Installation of <AdaptiveExecutor 'ours'")
    uninstall()


@pytest.mark.anyio
@pytest.mark.parametrize(("keep", "ceiling", "begin"), [(False, 6, 6), (True, 6, 3), (True, 2, 2)])
async def test_the_default_limiter_counts_if_it_is_kept_and_never_lifts_the_ceiling(
    pool: AdaptiveExecutor, keep: bool, ceiling: int, begin: int
) -> None:
    pool.resize(max_workers=ceiling)
    with install(pool, keep_default_limiter=keep):
        limiter = to_thread.current_default_thread_limiter()
        assert limiter.total_tokens == 40
        limiter.total_tokens = 3
        async with Way("installed", pool).busy(calls=7, begin=begin) as (gate, _):
            assert gate.nobody_begins(pool)
            assert limiter.borrowed_tokens == (3 if keep else 0)


def test_an_anyio_that_fails_the_self_test(monkeypatch: pytest.MonkeyPatch, pool: AdaptiveExecutor) -> None:
    monkeypatch.setattr(ebbpool.anyio, "_run_sync_of", {})
    # As if anyio's cancellations said something else.
    monkeypatch.setattr(asyncio_side, "ANYIO", "Cancelled by ")
    before = stock()
    told = f"anyio {importlib.metadata.version('anyio')} fails ebbpool's self-test on asyncio: .* leaves its call"
    with pytest.raises(UnsupportedVersion, match=told):
        asyncio.run(ebbpool.anyio.run_sync(abs, -1))
    with pytest.warns(RuntimeWarning, match=f"{told}.*; so calls .* run in anyio's own threads") as caught:
        installation = install(pool)
    assert [warning.filename for warning in caught] == [__file__]
    assert installation.executor is pool
    assert stock() == before
    assert not anyio.run(imported_before, thread_name).startswith("ours")
    assert install(pool) is installation
    uninstall()


def test_an_anyio_that_does_not_tell_deadlines_fails_the_self_test_and_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ebbpool.anyio, "_run_sync_of", {})
    monkeypatch.setattr("ebbpool._pool.cancelling.deadlines_elsewhere", [])
    monkeypatch.setattr("ebbpool._anyio.on_asyncio.deadline", fail)
    with pytest.raises(UnsupportedVersion, match=r"self-test on asyncio: .*Boom"):
        asyncio.run(ebbpool.anyio.run_sync(abs, -1))
    assert asyncio.run(to_thread.run_sync(ebbpool.time_left)) is None


@pytest.mark.parametrize(
    "lacks",
    [
        "anyio.to_thread.get_async_backend",
        "anyio._backends._asyncio._task_states",
        "anyio._backends._asyncio.CancelScope",
        pytest.param("trio._threads.PARENT_TASK_DATA", marks=missing("trio")),
    ],
)
def test_an_anyio_that_lacks_something(lacks: str) -> None:
    module, name = lacks.rsplit(".", 1)
    script = f"""
        import {module}
        import warnings
        import anyio.from_thread
        if "trio" in {module!r}:
            anyio.run(anyio.sleep, 0, backend="trio")
        del {lacks}
        import ebbpool.anyio
        with warnings.catch_warnings(record=True, action="always") as caught, ebbpool.anyio.install() as installation:
            print({name!r} in str(caught[0].message), installation.replaced)
        """
    assert output_of(script) == ["True []"]


PRELUDE = """
    import sys
    import threading

    import anyio
    import anyio.to_thread

    import ebbpool.anyio
    from ebbpool import AdaptiveExecutor

    def where():
        name = threading.current_thread().name
        return name if name.startswith("ebbpool-anyio") else name[:4] if name.startswith("ours") else "stock"

    def call(backend):
        return anyio.run(anyio.to_thread.run_sync, where, backend=backend)
    """


@missing("trio")
def test_trio_may_come_later() -> None:
    script = """
        print("trio" in sys.modules)
        with AdaptiveExecutor(thread_name_prefix="ours") as pool:
            with ebbpool.anyio.install(pool):
                print("trio" in sys.modules)
                print(call("asyncio"), call("trio"), call("trio"))
            print(call("asyncio"), call("trio"))
            with ebbpool.anyio.install(pool):
                print(call("asyncio"), call("trio"))
        """
    assert output_of(script, PRELUDE) == ["False", "False", "ours ours ours", "stock stock", "ours ours"]


@missing("trio")
def test_a_trio_that_comes_later_and_fails_the_self_test_is_left_as_it_is() -> None:
    script = """
        import warnings
        from support.anyio import trial
        with AdaptiveExecutor(thread_name_prefix="ours") as pool, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with ebbpool.anyio.install(pool):
                # As if a call could not ask whether its task has been cancelled.
                trial._call = lambda deadline, scope, told: scope.cancel
                print(call("asyncio"), call("trio"), call("trio"))
        print(*("self-test on trio" in str(warning.message) for warning in caught))
        """
    assert output_of(script, PRELUDE) == ["ours stock stock", "True"]


def test_trio_may_be_absent() -> None:
    script = """
        sys.modules["trio"] = None
        with AdaptiveExecutor(thread_name_prefix="ours") as pool:
            with ebbpool.anyio.install(pool):
                print(call("asyncio"))
                try:
                    call("trio")
                except LookupError as error:
                    print("not available" in str(error) or "No such backend" in str(error))
        """
    assert output_of(script, PRELUDE) == ["ours", "True"]


def test_an_installed_program_exits() -> None:
    script = """
        installation = ebbpool.anyio.install()
        # An exit that waited for its idle worker would take longer than the script may.
        installation.executor.resize(keep_alive=600)
        print(call("asyncio"))
        """
    done = run_script(script, PRELUDE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ebbpool-anyio_0\n", "")


AFTER = {
    "a thread that is no daemon": """
        begun, gate = threading.Event(), threading.Event()
        def serve():
            print(call(backend), flush=True)
            begun.set()
            threading.main_thread().join()
            gate.wait(10)
            print(call(backend), flush=True)
        threading.Thread(target=serve).start()
        begun.wait(10)
        # Opened when the pools have been closed.
        lifecycle.after_exit(gate.set)
        """,
    "atexit": """
        import atexit
        print(call(backend), flush=True)
        atexit.register(lambda: print(call(backend), flush=True))
        """,
    "the first call": """
        import atexit
        print("ebbpool-anyio", flush=True)
        atexit.register(lambda: print(call(backend), flush=True))
        """,
}


@pytest.mark.skipif(sys.version_info[:2] == (3, 12), reason="CPython 3.12 starts no thread once it has begun to exit")
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("backend", ["asyncio", pytest.param("trio", marks=missing("trio"))])
@pytest.mark.parametrize("where", AFTER)
def test_calls_go_on_in_the_threads_of_anyio_once_the_interpreter_exits(
    where: str, backend: str, limited: bool
) -> None:
    script = f"""
        from support.seams import lifecycle
        backend = {backend!r}
        ebbpool.anyio.install(keep_default_limiter={limited})
        """
    # Whether a token of the default limiter is borrowed by then, or none, or one of the caller's own.
    first, second = output_of(script + AFTER[where], PRELUDE)
    assert (first.partition("_")[0], second) == ("ebbpool-anyio", "stock")
