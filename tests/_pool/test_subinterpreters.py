"""Interpreters beside the main one, with a GIL of their own or with the main one's."""

from __future__ import annotations

import re
import sys

import pytest
from support.common import output_of, run_script

import ebbpool

pytestmark = [
    pytest.mark.skipif(sys.implementation.name != "cpython", reason="only CPython has sub-interpreters"),
    pytest.mark.skipif(sys.version_info < (3, 12), reason="before CPython 3.12 one GIL serves all interpreters"),
]

RUN = f"""
import os, sys, threading
try:
    import _interpreters
    create, execute = _interpreters.create, _interpreters.exec
except ImportError:
    import _xxsubinterpreters as _interpreters
    create = lambda kind: _interpreters.create(isolated=kind == "isolated")
    execute = _interpreters.run_string
def run(kind, code):
    interpreter = create(kind)
    try:
        problem = execute(interpreter, "import sys; sys.path[:] = " + repr(sys.path) + chr(10) + code)
        assert problem is None, problem
    finally:
        _interpreters.destroy(interpreter)
COMPILED = {ebbpool.COMPILED}
"""

WORK = '''
WORK = """
import threading
from ebbpool import AdaptiveExecutor, COMPILED, QueueFull
pool = AdaptiveExecutor(8)
barrier = threading.Barrier(8)
met = [pool.submit(barrier.wait, 10) for _ in range(8)]
assert sorted(future.result(10) for future in met) == list(range(8))
def fibonacci(n):
    return n if n < 2 else pool.submit(fibonacci, n - 1).result() + pool.submit(fibonacci, n - 2).result()
assert fibonacci(7) == 13
assert list(pool.map(abs, range(-500, 0))) == list(range(500, 0, -1))
assert pool.submit_later(0.001, pow, 2, 3).result(10) == 8
begun, go = threading.Event(), threading.Event()
left = [pool.submit(lambda: begun.set() or go.wait(10) or print("not opened")) for _ in range(2)]
left[1].add_done_callback(lambda _: print("done", flush=True))
begun.wait(10)
go.set()
"""
'''


@pytest.mark.parametrize("kind", ["isolated", "legacy"])
def test_a_pool_works_grows_and_ends_with_its_interpreter(kind: str) -> None:
    lines = output_of(f"for _ in range(2): run({kind!r}, WORK)\nprint('over')", RUN + WORK)
    assert lines == ["done"] * 2 + ["over"]


def test_pools_of_several_interpreters_work_side_by_side() -> None:
    """The main one has the compiled core, if there is one, and leaves the others the plain one."""
    done = run_script(
        """
        import ebbpool
        assert ebbpool.COMPILED is COMPILED
        with ebbpool.AdaptiveExecutor(2) as pool:
            for future in [pool.submit(run, "isolated", WORK) for _ in range(2)]:
                future.result()
        run("isolated", "import ebbpool; print(ebbpool.COMPILED)")
        run("legacy", "import ebbpool; print(ebbpool.COMPILED)")
        """,
        RUN + WORK,
    )
    # CPython 3.13 writes to standard error at the end of any interpreter that ran outside the main thread.
    assert (done.returncode, done.stdout.split()) == (0, ["done"] * 2 + ["False", "False"]), done.stderr


SAID = """
import logging
logging.basicConfig(format="%(message)s", level="INFO")
import ebbpool
with ebbpool.AdaptiveExecutor(1) as pool:
    print(pool.submit(pow, 2, 3).result(10), ebbpool.COMPILED)
"""


@pytest.mark.parametrize("kind", ["isolated", "legacy"])
def test_where_the_compiled_core_cannot_be_loaded_it_is_said_why(kind: str) -> None:
    # What comes second cannot load it.
    done = run_script(f"import ebbpool\nrun({kind!r}, {SAID!r})", RUN)
    assert (done.returncode, done.stdout.split()) == (0, ["8", "False"])
    if ebbpool.COMPILED:
        assert re.match("the plain engine runs: .*interpreter", done.stderr), done.stderr


INTERPRETERS = """
import asyncio
import threading
from concurrent.futures import InterpreterPoolExecutor
import ebbpool
from ebbpool.aio import new_loop_factory

USE = "import ebbpool\\nwith ebbpool.AdaptiveExecutor(1) as pool: assert pool.submit(pow, 2, 3).result(10) == 8"

async def main():
    return await asyncio.get_running_loop().run_in_executor(others, pow, 2, 4)

with ebbpool.AdaptiveExecutor(2, "pool") as pool, ebbpool.install(pool), InterpreterPoolExecutor(2, "other") as others:
    print([future.result(10) for future in [others.submit(pow, 2, power) for power in range(4)]])
    print(list(others.map(abs, range(-3, 0))), {thread.name.partition("_")[0] for thread in others._threads})
    for new_loop in (asyncio.SelectorEventLoop, new_loop_factory()):
        with asyncio.Runner(loop_factory=new_loop) as runner:
            print(runner.run(main()))
    print(pool.stats().submitted, others.submit(exec, USE).result(10))
    print(pool.submit(lambda: others.submit(pow, 2, 3).result(10)).result(10))
"""


@pytest.mark.skipif(sys.version_info < (3, 14), reason="InterpreterPoolExecutor is new in CPython 3.14")
def test_an_executor_of_interpreters_is_unharmed_beside_an_installed_pool() -> None:
    assert output_of(INTERPRETERS) == ["[1, 2, 4, 8]", "[3, 2, 1] {'other'}", "16", "16", "0 None", "8"]


DAEMON = """
import ebbpool
try:
    # An interpreter must not end before its daemon threads.
    with ebbpool.AdaptiveExecutor(daemon=True) as pool:
        print(pool.submit(pow, 2, 3).result(10), flush=True)
except RuntimeError as error:
    print(error, flush=True)
"""
LEAVE = """
import asyncio
from ebbpool import AdaptiveExecutor
async def main():
    async with AdaptiveExecutor(2) as pool:
        print(await pool.run(pow, 2, 3))
    print(pool.stats().workers, flush=True)
asyncio.run(main())
"""
REFUSED = "daemon=True needs daemon threads, which are disabled in this (sub)interpreter"


@pytest.mark.parametrize(
    ("code", "kind", "printed"),
    [
        ("import ebbpool\nwith ebbpool.AdaptiveExecutor(2) as pool: pool.submit(int)", "isolated", []),
        (DAEMON, "isolated", [REFUSED]),
        (DAEMON, "legacy", ["8"]),
        (LEAVE, "isolated", ["8", "0"]),
    ],
    ids=["shut down", "daemon refused", "daemon", "async with"],
)
def test_a_pool_that_was_shut_down_leaves_the_interpreter_nothing_to_wait_for(
    code: str, kind: str, printed: list[str]
) -> None:
    if code == LEAVE and sys.version_info < (3, 13):
        pytest.skip("importing asyncio in an isolated interpreter breaks the end of the process on CPython 3.12")
    lines = output_of(f"run({kind!r}, {code!r})\nprint(threading.active_count())", RUN)
    assert lines == [*printed, "1"]
