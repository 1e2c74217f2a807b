"""The stack of a pool's threads: theirs alone, checked before there is a thread, put back whatever happens."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator

import pytest
from support import seams
from support.common import TIMEOUT, Background, Gate, forked, no_thread, starting, together

from ebbpool import AdaptiveExecutor

SMALL, USUAL, LARGE = 1 << 18, 1 << 22, 1 << 25

glibc_only = pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "pthread_getattr_np"),
    reason="the platform does not tell the stack of a thread",
)


def setting() -> int:
    """Return the interpreter's setting; asking `threading.stack_size` for it resets it."""
    size = threading.stack_size()
    threading.stack_size(size)
    return size


@pytest.fixture(autouse=True)
def the_setting_is_put_back() -> Iterator[None]:
    before = threading.stack_size(USUAL)
    yield
    assert threading.stack_size(before) == USUAL


def own_stack() -> int:
    library = ctypes.CDLL(None)
    attributes = ctypes.create_string_buffer(256)
    library.pthread_self.restype = ctypes.c_void_p
    assert library.pthread_getattr_np(ctypes.c_void_p(library.pthread_self()), attributes) == 0
    size = ctypes.c_size_t()
    assert library.pthread_attr_getstacksize(attributes, ctypes.byref(size)) == 0
    library.pthread_attr_destroy(attributes)
    return size.value


def fits(found: int, asked: int) -> bool:
    """Tell whether a thread that has `found` may have asked for `asked`: glibc reuses stacks up to 4 times as large."""
    return asked <= found <= 4 * asked


def stacks_of(pool: AdaptiveExecutor, workers: int) -> list[int]:
    """Return the stack of each of `workers` threads that `pool` has at the same time."""
    with Gate() as gate:
        futures = [pool.submit(lambda: (gate(), own_stack())[1]) for _ in range(workers)]
        gate.await_begun(workers)
        gate.open()
        return [future.result(TIMEOUT) for future in futures]


@glibc_only
@pytest.mark.parametrize("size", [SMALL, None, LARGE])
def test_workers_have_the_stack_that_was_asked_for_and_other_threads_that_of_the_interpreter(size: int | None) -> None:
    assert fits(Background(own_stack).join(), USUAL)
    with AdaptiveExecutor(3, thread_stack_size=size) as pool:
        found = stacks_of(pool, 3)
        assert all(fits(stack, size or USUAL) for stack in found), found
        # A worker may run before its start has put the setting back.
        with seams.threads._lock:
            assert fits(Background(own_stack).join(), USUAL)
    assert setting() == USUAL


@glibc_only
def test_pools_with_sizes_of_their_own_beside_each_other() -> None:
    def fill(number: int) -> tuple[int, list[int]]:
        size = (SMALL, LARGE)[number % 2]
        with AdaptiveExecutor(8, thread_stack_size=size) as pool:
            return size, stacks_of(pool, 8)

    for size, found in together(fill):
        assert all(fits(stack, size) for stack in found), (size, found)


@glibc_only
def test_a_worker_that_is_started_in_the_middle_of_another_start() -> None:
    inner: list[int] = []

    def start_another() -> None:
        # What a finaliser does that the garbage collector runs in here.
        with AdaptiveExecutor(1, thread_stack_size=LARGE) as other:
            inner.append(other.submit(own_stack).result(TIMEOUT))
        assert setting() == SMALL

    with starting("outer_0", start_another), AdaptiveExecutor(1, "outer", thread_stack_size=SMALL) as pool:
        assert fits(pool.submit(own_stack).result(TIMEOUT), SMALL)
    assert fits(inner[0], LARGE)


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), KeyboardInterrupt()])
def test_a_start_that_fails_puts_the_setting_back(error: BaseException) -> None:
    seen: list[int] = []

    def refuse() -> None:
        seen.append(setting())
        raise error

    with AdaptiveExecutor(1, "sized", thread_stack_size=SMALL) as pool:
        with starting("sized_0", refuse), pytest.raises(type(error)):
            pool.submit(int)
        assert (seen, setting()) == ([SMALL], USUAL)
        # Nor does another thread wait for ever.
        assert Background(lambda: pool.submit(int).result(TIMEOUT)).join() == 0


def test_checking_a_size_starts_no_thread_and_changes_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    AdaptiveExecutor(thread_stack_size=LARGE)
    for wrong in (1, 2**60):
        with pytest.raises(ValueError):
            AdaptiveExecutor(thread_stack_size=wrong)
    assert setting() == USUAL


def test_a_fork_while_another_thread_starts_a_worker() -> None:
    """The fork does not wait for the start; the child finds the usual setting and a lock that is free."""
    lines = forked(
        """
    def setting():
        size = threading.stack_size()
        threading.stack_size(size)
        return size

    threading.stack_size(1 << 20)
    inside, go = threading.Event(), threading.Event()

    start = threading.Thread.start
    def slow(thread):
        if thread.name == "slow_0" and os.getpid() == parent:
            inside.set()
            assert go.wait(10)
        start(thread)
    parent = os.getpid()
    threading.Thread.start = slow

    slow_pool = AdaptiveExecutor(1, "slow", thread_stack_size=1 << 18)
    starter = threading.Thread(target=slow_pool.submit, args=(int,))
    starter.start()
    assert inside.wait(10)
    assert setting() == 1 << 18
    def check():
        assert setting() == 1 << 20
        with AdaptiveExecutor(1, thread_stack_size=1 << 19) as pool:
            assert pool.submit(pow, 2, 3).result(10) == 8
        assert setting() == 1 << 20
    print(in_child(check))
    go.set()
    starter.join(10)
    print(setting())
    with AdaptiveExecutor(1, thread_stack_size=1 << 19) as pool:
        print(pool.submit(pow, 2, 4).result(10))
    """
    )
    assert lines == ["0", str(1 << 20), "16"]
