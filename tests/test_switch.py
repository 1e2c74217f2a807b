"""One switch: what is changed, what is left, and that all of it can be undone."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.common import TIMEOUT, eventually, output_of, wait_for_idle
from support.loops import each_loop_class  # noqa: F401  (a fixture)

import ebbpool
from ebbpool import AdaptiveExecutor

anyio = pytest.importorskip("anyio")
trio = pytest.importorskip("trio")


@pytest.fixture
def pool() -> Iterator[AdaptiveExecutor]:
    with AdaptiveExecutor(thread_name_prefix="pool") as pool:
        yield pool


def name() -> str:
    return threading.current_thread().name.partition("_")[0].partition("-")[0]


async def names() -> dict[str, str]:
    """Return in whose threads the calls of an asyncio program run."""
    loop = asyncio.get_running_loop()
    return {
        "to_thread": await asyncio.to_thread(name),
        "executor": await loop.run_in_executor(None, name),
        "anyio": await anyio.to_thread.run_sync(name),
    }


async def trio_thread() -> threading.Thread:
    found: threading.Thread = await trio.to_thread.run_sync(threading.current_thread)
    return found


def of_trio() -> AdaptiveExecutor:
    """Return the pool beside `pool`, which has trio's calls."""
    [beside] = [each for each in ebbpool.pools() if each.name.startswith("pool-trio")]
    return beside


ON_POOL = {"to_thread": "pool", "executor": "pool", "anyio": "pool"}


def run_on(new_loop: Any, main: Any) -> Any:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main())


def test_all_hand_overs_go_to_the_pool_and_back(pool: AdaptiveExecutor, loop_class: Any) -> None:
    before = run_on(loop_class, names)
    assert "pool" not in before.values()
    with ebbpool.install(pool) as installed:
        assert installed.executor is pool
        assert run_on(loop_class, names) == ON_POOL
        # A loop that ends shuts its default executor down.
        assert run_on(loop_class, names) == ON_POOL
    assert run_on(loop_class, names) == before


def test_trio_has_a_pool_beside_it(pool: AdaptiveExecutor) -> None:
    with ebbpool.install(pool):
        assert trio.run(trio_thread) in of_trio()._threads
        of_trio().shutdown()


def test_a_loop_class_that_is_defined_later(pool: AdaptiveExecutor, loop_class: Any) -> None:
    """As a library does that is imported after `install`."""
    with ebbpool.install(pool):
        later = type("Later", (loop_class, asyncio.AbstractEventLoop), {})
        assert run_on(later, names) == ON_POOL
    assert "pool" not in run_on(later, names).values()


def test_a_loop_made_meanwhile_has_its_own_executor_afterwards(pool: AdaptiveExecutor, loop_class: Any) -> None:
    from ebbpool.aio import new_loop_factory

    factories = [new_loop_factory(loop_class)]
    if not loop_class.__mro__[1].__module__.startswith("uvloop"):  # whose loops do not tell which executor they have
        factories.append(loop_class)
    for new_loop in factories:
        with ebbpool.install(pool) as installed, asyncio.Runner(loop_factory=new_loop) as runner:
            assert runner.run(names()) == ON_POOL
            installed.undo()
            assert "pool" not in runner.run(names()).values()


def test_the_loop_that_runs(pool: AdaptiveExecutor) -> None:
    async def main() -> None:
        before = await names()
        with ebbpool.install(pool) as installed:
            assert "the one that runs" in installed.parts["asyncio"]
            assert await names() == ON_POOL
        assert await names() == before

    asyncio.run(main())


def test_the_loops_of_aio_take_their_short_way(pool: AdaptiveExecutor, loop_class: Any) -> None:
    from ebbpool.aio import LoopFuture, new_loop_factory

    async def main() -> None:
        future = asyncio.get_running_loop().run_in_executor(None, name)
        assert isinstance(future, LoopFuture)
        assert await future == "pool"

    with ebbpool.install(pool):
        run_on(new_loop_factory(loop_class), main)


def test_once_at_a_time(pool: AdaptiveExecutor) -> None:
    with ebbpool.install(pool) as installed, AdaptiveExecutor() as other:
        with pytest.raises(RuntimeError, match="already installed, on <AdaptiveExecutor 'pool'"):
            ebbpool.install(other)
        installed.undo()
        with ebbpool.install(pool):
            installed.undo()
            assert asyncio.run(names()) == ON_POOL
    with pytest.raises(RuntimeError, match=r"executor must be open, not <AdaptiveExecutor .*, shut down>"):
        ebbpool.install(other)
    with pytest.raises(TypeError, match=r"executor must be an ebbpool.AdaptiveExecutor or None, not 3"):
        ebbpool.install(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("face", ["ebbpool", "ebbpool.anyio"])
def test_again_on_the_same_pool_it_lasts_until_the_last_of_them_ends(pool: AdaptiveExecutor, face: str) -> None:
    install = importlib.import_module(face).install
    with ebbpool.install(pool):
        with install() as second, install(pool) as third:
            assert second is third
            assert asyncio.run(names()) == ON_POOL
        assert asyncio.run(names()) == ON_POOL
    assert "pool" not in asyncio.run(names()).values()


def test_what_was_replaced_since_is_not_undone(pool: AdaptiveExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    with ebbpool.install(pool) as installed:
        with monkeypatch.context() as other:
            make: Any = asyncio.BaseEventLoop.__init__
            other.setattr(asyncio.BaseEventLoop, "__init__", lambda *args, **kwargs: make(*args, **kwargs))
            with pytest.raises(RuntimeError, match=r"BaseEventLoop.__init__ has been replaced since"):
                installed.undo()
        assert asyncio.run(names()) == ON_POOL


def test_loops_made_after_the_pool_was_shut_down_have_their_own_executor() -> None:
    with AdaptiveExecutor(thread_name_prefix="pool") as pool, ebbpool.install(pool):
        pool.shutdown()
        assert asyncio.run(asyncio.to_thread(name)) == "asyncio"


LATE = """
import sys
import threading
import warnings
import ebbpool

print([name for name in ("anyio", "asyncio", "trio") if name in sys.modules])
lines = []
installed = ebbpool.install(explain=lines.append)
print(*lines, sep="\\n")
lines.clear()

# Many ask whether there is a library, and do not import it.
import importlib.util
importlib.util.find_spec("anyio")

import asyncio
import anyio
import trio
print(*lines, sep="\\n")
print(anyio.__spec__.loader.__class__.__name__, anyio.__loader__ is anyio.__spec__.loader)

def name():
    return threading.current_thread().name.partition("_")[0]

async def main():
    return await asyncio.to_thread(name), await anyio.to_thread.run_sync(name)

async def trios():
    return (await trio.to_thread.run_sync(threading.current_thread)).name.partition("_")[0]

print(asyncio.run(main()), trio.run(trios))
installed.undo()
print(asyncio.run(main()), trio.run(trios))
"""
OURS = "with warnings.catch_warnings(action='error'): import ebbpool.anyio"


@pytest.mark.parametrize("before", ["", OURS], ids=["by themselves", "ours before anyio"])
def test_libraries_that_are_imported_later(before: str) -> None:
    printed = output_of(LATE.replace("import asyncio\n", f"{before}\nimport asyncio\n"))
    later = "as soon as it is imported"
    there = [line for line in printed[1:] if line.partition(":")[0] in ("anyio", "asyncio", "trio")]
    assert printed[0] == "[]"
    assert there == [
        *(f"{library}: {later}" for library in ("anyio", "trio", "asyncio")),
        "asyncio: the default executor of new loops",
        "anyio: to_thread, and with it Starlette and FastAPI",
        "trio: to_thread",
    ]
    assert printed[-3:-1] == ["SourceFileLoader True", "('ebbpool', 'ebbpool') ebbpool-trio"]
    assert "ebbpool" not in printed[-1]


UNKNOWN = """
import warnings
import anyio._backends._asyncio
import ebbpool
from trio.lowlevel import start_thread_soon

del anyio._backends._asyncio._task_states
del start_thread_soon.__globals__["THREAD_CACHE"]
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    installed = ebbpool.install()
print(installed.parts["anyio"])
print(installed.parts["trio"])
print([(warning.category.__name__, str(warning.message)[:60]) for warning in told])
installed.undo()
"""


def test_a_version_that_is_not_known_is_left_as_it_is() -> None:
    of_anyio, of_trio, told = output_of(UNKNOWN)
    assert of_anyio == "left as it is: it fails the self-test of ebbpool.anyio"
    assert of_trio == "left as it is: it has no THREAD_CACHE in this version"
    assert told.count("RuntimeWarning") == 2
    assert "fails ebbpool's self-test on asyncio" in told and "ebbpool leaves trio as it is" in told


def test_a_library_that_is_not_there() -> None:
    script = """
        import importlib.util
        find = importlib.util.find_spec
        importlib.util.find_spec = lambda name: None if name == "anyio" else find(name)
        import ebbpool
        print(ebbpool.install().parts["anyio"])
    """
    assert output_of(script) == ["not installed"]


def test_trio_calls_have_their_limiter_and_no_other_limit() -> None:
    async def main() -> None:
        limiter = trio.CapacityLimiter(5)
        meeting = threading.Barrier(5)
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(lambda: trio.to_thread.run_sync(meeting.wait, TIMEOUT, limiter=limiter))

    with AdaptiveExecutor(1, "pool") as pool, ebbpool.install(pool):
        trio.run(main)
        eventually(lambda: of_trio().stats().completed == 5)
        of_trio().shutdown()


@pytest.mark.parametrize("daemon", [False, True])
def test_threads_of_trio_calls_are_daemons_and_have_their_names_meanwhile(daemon: bool) -> None:
    begun: list[tuple[threading.Thread, str]] = []

    def begin() -> None:
        thread = threading.current_thread()
        begun.append((thread, thread.name))

    async def main() -> None:
        await trio.to_thread.run_sync(begin, thread_name="mine")

    with AdaptiveExecutor(1, "pool", begin, daemon=daemon) as pool, ebbpool.install(pool):
        trio.run(main)
        beside = pool if daemon else of_trio()
        wait_for_idle(beside)
        [(thread, usual), (same, name)] = begun
        assert (thread, name, thread.daemon) == (same, "mine", True)
        assert thread.name == usual == f"{beside.name}_0"
        beside.shutdown()


def test_what_raises_as_trio_is_told_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    def deliver(outcome: Any) -> None:
        raise OSError(outcome.unwrap())

    with AdaptiveExecutor(1, "pool") as pool, ebbpool.install(pool):
        trio.lowlevel.start_thread_soon(lambda: 42, deliver)
        of_trio().shutdown()
    printed = capsys.readouterr().err
    assert printed.startswith("Exception while delivering result of thread\nTraceback ")
    assert printed.endswith("OSError: 42\n")


def test_a_call_that_trio_has_left_behind_does_not_hold_up_the_exit() -> None:
    script = """
        import atexit, sys, threading, trio, ebbpool
        begun = threading.Event()
        def stay():
            begun.set()
            threading.Event().wait()
        async def main():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: trio.to_thread.run_sync(stay, abandon_on_cancel=True))
                await trio.to_thread.run_sync(begun.wait, 10)
                nursery.cancel_scope.cancel()
        ebbpool.install()
        trio.run(main)
        def late():
            print(trio.run(trio.to_thread.run_sync, lambda: "also later"), flush=True)
        if sys.version_info[:2] == (3, 12):
            late()
        else:
            atexit.register(late)
    """
    assert output_of(script) == ["also later"]
