"""The text that tells what all pools do."""

from __future__ import annotations

import asyncio
import io
import re
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.common import STACKS, Background, Gate, eventually, output_of, run_script

from ebbpool import AdaptiveExecutor
from ebbpool.monitor import dump, dump_on_signal

has_usr1 = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="the platform has no such signal")


def hang(gate: Gate) -> None:
    gate()


class Odd(AdaptiveExecutor):
    def stats(self) -> Any:
        raise RuntimeError("not today")


def test_it_tells_of_pools_lanes_tasks_and_of_what_nobody_waits_for() -> None:
    async def give_up(pool: AdaptiveExecutor, gate: Gate) -> None:
        call = pool.run(hang, gate)
        await asyncio.to_thread(gate.await_begun)
        call.cancel()

    out = io.StringIO()
    with AdaptiveExecutor(2, thread_name_prefix="web") as pool, Gate() as gate:
        lane = pool.lane("reports", limit=1)
        for _ in range(2):
            lane.submit(hang, gate)
        gate.await_begun()
        asyncio.run(give_up(pool, gate))
        pool.within(0.001).submit(int).exception()
        inner = pool.submit(int)
        dump(out)
        text = out.getvalue()
        gate.open()
        inner.result()
    line = next(line for line in text.splitlines() if line.startswith("pool 'web': "))
    assert "2 of at most 2 threads (0 idle, 2 running, 0 of these blocked, 1 abandoned), 1 waiting, the oldest" in line
    assert "; 1 waited for too long and were not run" in line
    assert "  lane 'reports': 1 of at most 1 running, 1 waiting\n" in text
    assert text.count(f"{__name__}.hang") == 2 and text.count(f"{__name__}.hang, lane 'reports', running for") == 1
    assert re.search(r"web_1: .*hang, running for .* s, abandoned: nobody waits for it\n", text)
    assert text.count("in hang\n" if STACKS else "(no stack") == 2
    last = text.splitlines()[-1]
    assert last.startswith("threads of no pool: ") and "'MainThread'" in last and "web" not in last


def test_a_pool_that_waits_for_its_last_task_is_shown_and_an_odd_one_does_not_hide_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with (
        Odd(thread_name_prefix="odd"),
        AdaptiveExecutor(thread_name_prefix="idle"),
        AdaptiveExecutor(thread_name_prefix="ending") as pool,
        Gate() as gate,
    ):
        gate.hold(pool)
        pool.shutdown(wait=False)
        dump()
    text = capsys.readouterr().err
    assert text.startswith("ebbpool: ")
    assert "pool 'odd': cannot be looked at: RuntimeError('not today')\n" in text
    assert "pool 'idle': 0 of at most 256 threads" in text
    assert "pool 'ending' (shut down): 1 of at most 256 threads" in text


@pytest.fixture
def handled() -> Iterator[list[int]]:
    """A handler of the signal; what it was told."""
    told: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda signum, frame: told.append(signum))
    yield told
    signal.signal(signal.SIGUSR1, before)


@has_usr1
def test_a_signal_asks_for_it_and_the_handler_before_is_called_too(handled: list[int]) -> None:
    out = io.StringIO()
    for count in (1, 2):
        dump_on_signal(signal.SIGUSR1, out)
        signal.raise_signal(signal.SIGUSR1)
        eventually(lambda: out.getvalue().count("ebbpool: ") == count)  # noqa: B023  (used at once)
        assert handled == [signal.SIGUSR1] * count


ON_SIGNAL = """
    import atexit, os, signal, sys, threading
    from ebbpool import AdaptiveExecutor
    from support import seams
    from ebbpool.monitor import dump_on_signal
    begun = threading.Event()
    class Out:
        def write(self, text):
            before_it_is_written()
            sys.stdout.write(text)
        def flush(self):
            sys.stdout.flush()
    def ask():
        signal.raise_signal(signal.SIGUSR1)
        begun.wait()
    dump_on_signal(signal.SIGUSR1, Out())
    seams.setting(wait_for_dump=20)
"""


@has_usr1
def test_it_answers_while_the_main_thread_waits_for_a_task() -> None:
    done = run_script(
        """
        before_it_is_written = begun.set
        def hang():
            # One that comes as the main thread begins to wait is handled when that wait ends.
            for _ in range(200):
                os.kill(os.getpid(), signal.SIGUSR1)
                if begun.wait(0.1):
                    return True
        with AdaptiveExecutor(thread_name_prefix="web") as pool:
            assert pool.submit(hang).result(30)
        """,
        ON_SIGNAL,
    )
    assert done.returncode == 0, done.stderr
    assert "web_0: __main__.hang, running for" in done.stdout


@has_usr1
@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_where_no_thread_can_be_started_it_says_so_and_the_program_goes_on(
    handled: list[int], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], error: Exception
) -> None:
    def start(thread: threading.Thread) -> None:
        raise error

    dump_on_signal(signal.SIGUSR1)
    monkeypatch.setattr(threading.Thread, "start", start)
    signal.raise_signal(signal.SIGUSR1)
    assert handled == [signal.SIGUSR1]
    assert capfd.readouterr().err == f"ebbpool: the pools cannot be dumped: {error!r}\n"


not_on_312 = pytest.mark.skipif(sys.version_info[:2] == (3, 12), reason="CPython 3.12 starts no thread as it exits")


@has_usr1
@pytest.mark.parametrize("closing", [False, pytest.param(True, marks=not_on_312)])
def test_the_exit_waits_until_it_is_written(closing: bool) -> None:
    lines = output_of(
        f"""
        closed = False
        def close():
            # It comes before ours, which were registered before.
            global closed
            closed = not {closing}
            if {closing}:
                ask()
        atexit.register(close)
        awaited = threading.Event()
        def before_it_is_written():
            (thread,) = [each for each in threading.enumerate() if each.name == "ebbpool-dump"]
            join = thread.join
            thread.join = lambda timeout: (awaited.set(), join(timeout))
            begun.set()
            awaited.wait()
            assert not closed
        if not {closing}:
            ask()
        """,
        ON_SIGNAL,
    )
    told, others = lines
    assert told.startswith("ebbpool: 0 pools in process ") and others.startswith("threads of no pool: ")


@has_usr1
def test_the_exit_does_not_wait_for_one_that_is_stuck() -> None:
    lines = output_of(
        """
        def before_it_is_written():
            begun.set()
            threading.Event().wait()
        seams.setting(wait_for_dump=0.01)
        ask()
        print("over")
        """,
        ON_SIGNAL,
    )
    assert lines == ["over"]


@pytest.mark.parametrize(
    ("signum", "file", "error", "text"),
    [
        ("USR1", None, TypeError, "signum must be an integer, not 'USR1'"),
        (True, None, TypeError, "signum must be an integer, not True"),
        (9999, None, ValueError, "signum must be a signal that can be handled, not 9999"),
        (9, None, ValueError, "signum must be a signal that can be handled, not 9"),
        (2, "path", TypeError, "file must be an open text file or None, not 'path'"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="there are other signals")
def test_bad_arguments(signum: Any, file: Any, error: type[Exception], text: str) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(error, match=text):
        dump_on_signal(signum, file)
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(ValueError, match="main thread"):
        Background(lambda: dump_on_signal(signal.SIGINT)).join()
