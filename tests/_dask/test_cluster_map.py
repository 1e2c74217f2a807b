"""Maps over a cluster send items in chunks. In all else they are maps in threads, and tested as such."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from support import cluster as remote
from support.common import TIMEOUT, eventually, gone
from support.dask import Held

from ebbpool.dask import ClusterExecutor


def test_results_are_in_order_if_that_is_asked_for(pool: ClusterExecutor) -> None:
    assert list(pool.map(remote.add, range(500), range(500))) == list(range(0, 1000, 2))
    assert list(pool.map(remote.add, [])) == []
    assert sorted(pool.map_unordered(remote.add, range(300))) == list(range(1, 301))


def test_tiny_items_share_calls_and_a_chunksize_is_kept(pool: ClusterExecutor, sent: list[Any]) -> None:
    assert list(pool.map(remote.add, range(20_000))) == list(range(1, 20_001))
    assert len(sent) < 1000
    before = pool.stats().submitted

    def numbers() -> Iterator[int]:
        for number in range(10):
            assert pool.stats().submitted == before, "all is read first"
            yield number

    given: list[Iterable[int]] = [numbers(), range(10)]
    for items in given:
        sent.clear()
        assert list(pool.map(remote.add, items, chunksize=5)) == list(range(1, 11))
        assert len(sent) == 2


@pytest.mark.parametrize("chunksize", [0, -3])
def test_a_chunksize_below_one_is_as_good_as_none(pool: ClusterExecutor, sent: list[Any], chunksize: int) -> None:
    assert list(pool.map(remote.add, range(20_000), chunksize=chunksize)) == list(range(1, 20_001))
    assert len(sent) < 1000


@pytest.mark.parametrize("chunksize", [1.5, "2"])
def test_a_chunksize_is_a_number_of_items(pool: ClusterExecutor, chunksize: Any) -> None:
    with pytest.raises(TypeError, match=f"chunksize must be an integer, not {chunksize!r}"):
        pool.map(remote.add, range(3), chunksize=chunksize)


def test_each_item_passes_through_a_submit_of_a_subclass(client: Client) -> None:
    threads: list[threading.Thread] = []

    class Noting(ClusterExecutor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            threads.append(threading.current_thread())
            return super().submit(fn, *args, **kwargs)

    with Noting(client) as pool:
        results = pool.map(remote.add, range(10), range(10))
        assert threads == [threading.current_thread()] * 10
        assert list(results) == list(range(0, 20, 2))


def test_an_error_comes_at_its_place(pool: ClusterExecutor, held: Held) -> None:
    results = pool.map(remote.divide, [1, 2, 0, 5])
    assert [next(results), next(results)] == [10, 5]
    with pytest.raises(ZeroDivisionError):
        next(results)
    results = pool.map_unordered(remote.divide, [1, 0, 2], chunksize=3)
    assert next(results) == 10
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert list(results) == [5]
    results = pool.map(lambda number: threading.Lock() if number == 3 else number, range(5), chunksize=5)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(TypeError, match="the result cannot be pickled: <unlocked"):
        next(results)
    with pytest.raises(RuntimeError, match="generator raised StopIteration") as raised:
        list(pool.map(remote.fail, [StopIteration], ["mine"]))
    assert str(raised.value.__cause__) == "mine"
    with pytest.raises(TimeoutError, match="wait_at"):
        list(pool.map(remote.wait_at, [held.name], timeout=0))


def test_an_endless_iterable_is_read_as_far_as_the_buffer(client: Client) -> None:
    numbers = count()
    # With a buffer the iterator keeps its executor.
    results = ClusterExecutor(client).map(remote.add, numbers, buffersize=10)
    gc.collect()
    assert [next(results) for _ in range(100)] == list(range(1, 101))
    assert next(numbers) <= 110
    del results


@pytest.mark.parametrize("when_full", ["block", "reject"])
def test_a_bounded_queue_holds_up_no_map(client: Client, when_full: Any) -> None:
    with ClusterExecutor(client, max_queue=0, when_full=when_full) as pool:
        assert list(pool.map(remote.add, range(100), chunksize=1)) == list(range(1, 101))


@pytest.mark.parametrize("lane", [True, False])
def test_others_get_their_turn_beside_a_long_map(client: Client, held: Held, tmp_path: Path, lane: bool) -> None:
    path = str(tmp_path / "made")
    with ClusterExecutor(client, window=0.5) as pool:
        # The map does not begin before the other call has come.
        pool.submit(remote.wait_at, held.name)
        held.await_begun()
        place: Any = pool.lane("two", limit=2) if lane else pool
        place.map(remote.note, [path] * 100, map(str, range(100)), chunksize=1)
        del place
        other = pool.submit(remote.note, path, "other")
        held.open()
        other.result(TIMEOUT)
    made = Path(path).read_text().split()
    assert len(made) == 101, "what nobody looks at is made all the same"
    assert made[-1] != "other"


def test_a_map_has_no_more_tasks_than_the_window_has_places_and_one_that_waits(client: Client, held: Held) -> None:
    with ClusterExecutor(client, window=1.0) as pool:
        results = pool.map(remote.wait_at, [held.name] * 100, chunksize=1)
        held.await_begun()
        eventually(lambda: (pool.stats().running, pool.stats().queued) == (2, 1))
        held.open()
        assert len(list(results)) == 100


def test_a_map_goes_on_without_its_executor(cluster: Any) -> None:
    assert list(ClusterExecutor(cluster.scheduler_address).map(remote.add, range(1000))) == list(range(1, 1001))
    executor = ClusterExecutor(cluster.scheduler_address)
    results, reference, client = executor.map(remote.add, range(1000)), weakref.ref(executor), executor._link.client
    del executor
    gone(reference)
    eventually(lambda: client.status == "closed")
    assert list(results) == list(range(1, 1001))


def test_what_was_read_is_handed_out_after_shutdown(client: Client) -> None:
    pool = ClusterExecutor(client)
    results = [pool.map(remote.add, count(), buffersize=1000), pool.map(remote.add, range(1000))]
    pool.shutdown()
    for each in results:
        assert [next(each) for _ in range(1000)] == list(range(1, 1001))
    with pytest.raises(RuntimeError, match="after shutdown"):
        next(results[0])
    assert list(results[1]) == []
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.map(remote.add, [1])


@pytest.mark.parametrize(
    ("closed", "buffersize", "max_queue"),
    [("pool", None, None), ("pool", 20, 9), ("pool of a lane", None, None), ("lane", None, 9)],
)
def test_cancelling_at_the_end_gives_what_has_begun(
    client: Client, held: Held, closed: str, buffersize: int | None, max_queue: int | None
) -> None:
    with ClusterExecutor(client, window=0.5, max_queue=max_queue) as pool:
        place: Any = pool if closed == "pool" else pool.lane("one", limit=1)
        results = place.map(remote.wait_at, [held.name] * 1000, buffersize=buffersize, chunksize=1)
        held.await_begun()
        others = place.map(remote.add, [1, 2])
        if closed == "pool of a lane":
            # Nobody refers to the lane any more.
            place = pool
        place.shutdown(wait=False, cancel_futures=True)
        held.open()
        assert next(results) == held.name
        for cancelled in (results, others):
            with pytest.raises(CancelledError):
                next(cancelled)
            assert list(cancelled) == []
