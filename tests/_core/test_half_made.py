"""Objects whose `__init__` was never called, and None where a part of the core is expected: an error, never a crash.

In interpreters of their own: compiled code that does not look would take this one along.
"""

from __future__ import annotations

import pytest
from support.common import output_of, run_script

import ebbpool

SUBCLASSES = """
import asyncio
from functools import partial
from ebbpool import AdaptiveExecutor, Future
from ebbpool.lane import Lane
from ebbpool.sync import BoundedSemaphore, Semaphore

def forgetful(cls):
    return type("Forgetful", (cls,), {"__init__": lambda self, *args: None})()

def told(call, *args, **kwargs):
    try:
        return call(*args, **kwargs)
    except RuntimeError as error:
        return str(error)
"""
OF_BOTH = (
    "submit(abs, -1); map(abs, [1]); map_unordered(abs, [1]); stats(); shutdown(); __exit__(None, None, None); "
    "__repr__()"
)
OF_EXECUTORS = (
    "submit_first(abs, -1); submit_later(1.0, abs, -1); schedule(1.0, abs, -1); stream(iter, [1]); amap(abs, [1]); "
    "lane('name', limit=1); resize(max_workers=3)"
)
OF_SEMAPHORES = (
    "acquire(); acquire(False); acquire(timeout=0.01); __enter__(); release(); release(3); __exit__(None, None, None)"
)
CALLS = {
    "AdaptiveExecutor": f"{OF_BOTH}; {OF_EXECUTORS}",
    "Lane": OF_BOTH,
    "Semaphore": OF_SEMAPHORES,
    "BoundedSemaphore": OF_SEMAPHORES,
}
PLAIN = "import os; os.environ['EBBPOOL_PURE'] = '1'\n"
each_core = pytest.mark.parametrize("prelude", [PLAIN, ""], ids=["plain", "default"])


@each_core
def test_every_call_of_one_says_what_was_forgotten(prelude: str) -> None:
    calls = [(cls, call) for cls, each in CALLS.items() for call in each.split("; ")]
    script = "".join(f"print(told(lambda: forgetful({cls}).{call}))\n" for cls, call in calls)
    for (cls, call), line in zip(calls, output_of(script, prelude + SUBCLASSES), strict=True):
        owner = "Semaphore" if cls == "BoundedSemaphore" else cls
        assert line == f"{owner}.__init__() was never called", f"{cls}.{call}"


@each_core
def test_a_loop_is_told_what_was_forgotten(prelude: str) -> None:
    script = """
    async def main():
        for one in (forgetful(AdaptiveExecutor), forgetful(Lane)):
            print(told(lambda: one.run(abs, -1)))
            print(told(lambda: asyncio.get_running_loop().run_in_executor(one, abs, -1)))

    asyncio.run(main())
    """
    told = [f"{name}.__init__() was never called" for name in ("AdaptiveExecutor", "Lane")]
    assert output_of(script, prelude + SUBCLASSES) == [told[0], told[0], told[1], told[1]]


@each_core
def test_futures_are_complete_without_init(prelude: str) -> None:
    script = """
    future = forgetful(Future)
    print(repr(future).partition("state=")[2])
    print(forgetful(Future).cancel(), told(lambda: forgetful(Future).set_running_or_notify_cancel()))
    with AdaptiveExecutor(1) as pool:
        delayed = type(pool.submit_later(3600.0, int))
    for future in future, delayed(), forgetful(delayed):
        seen = []
        future.add_done_callback(seen.append)
        future.set_result(42)
        print(future.result(), seen == [future], type(future).__mro__[-2].__name__)
    one = forgetful(AdaptiveExecutor)
    print(one.__enter__() is one, one.wait_idle(), one._threads, one._shutdown)
    print(repr(forgetful(Semaphore)).partition(": ")[2], repr(forgetful(BoundedSemaphore)).partition(": ")[2])
    """
    figures = ["42 True Future"] * 3
    asked = ["True True frozenset() True", "value=0> value=0/0>"]
    assert output_of(script, prelude + SUBCLASSES) == ["pending>", "True True", *figures, *asked]


EVERYTHING = """
from ebbpool import sync
from support.seams import parts_of_the_core

classes = parts_of_the_core()
# Without an owner: to let a mutex go that nobody has taken is fatal, and to take one twice never ends.
unsafe = {"hold", "let_go"}
# What would wait for ever for an object that nobody will ever complete.
waits = {"result", "exception", "_wait_for_outcome", "_await"}
made = 0

def fill(filler, count):
    if filler == "parts":
        return [(cls.__new__(cls),) * count for cls in classes] if count else []
    return [(filler,) * count]

for cls in classes:
    for name in dir(cls):
        if name in unsafe or (name.startswith("__") and name != "__repr__"):
            continue
        for count in range(8):
            for filler in (None, 1, abs, "parts"):
                for arguments in fill(filler, count):
                    if name in waits and arguments in ((), (None,)):
                        arguments = (0.0,)
                    try:
                        getattr(cls.__new__(cls), name)(*arguments)
                    except Exception:
                        pass
                    made += 1
print(made > 1000)
"""


@pytest.mark.skipif(not ebbpool.COMPILED, reason="plain Python does not crash")
def test_nothing_that_is_half_made_crashes() -> None:
    done = run_script(EVERYTHING, "import faulthandler; faulthandler.enable()\n")
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
