"""Maps over a cluster send items in chunks."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import CancelledError, ThreadPoolExecutor
from itertools import chain, count
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, Event
from support import cluster as remote
from support.common import TIMEOUT, eventually, gone
from support.dask import Held, link

from ebbpool.dask import ClusterExecutor


@pytest.fixture
def sent(pool: ClusterExecutor, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each call to the cluster adds the name of its function."""
    names: list[str] = []
    send = link.Link.send

    def counting(self: link.Link, name: str, packed: Any, alone: bool = False) -> Any:
        names.append(name)
        return send(self, name, packed, alone)

    monkeypatch.setattr(link.Link, "send", counting)
    return names


def test_results_are_in_order_if_that_is_asked_for(pool: ClusterExecutor) -> None:
    assert list(pool.map(remote.add, range(500), range(500))) == list(range(0, 1000, 2))
    assert list(pool.map(remote.add, [])) == []
    assert sorted(pool.map_unordered(remote.add, range(300))) == list(range(1, 301))


def test_threads_may_share_the_iterator(pool: ClusterExecutor) -> None:
    results = pool.map(remote.add, range(500), chunksize=7)
    with ThreadPoolExecutor(4) as threads:
        found = [threads.submit(list, results) for _ in range(4)]
    assert sorted(chain(*(future.result() for future in found))) == list(range(1, 501))


def test_tiny_items_share_calls(pool: ClusterExecutor, sent: list[str]) -> None:
    assert list(pool.map(remote.add, range(20_000))) == list(range(1, 20_001))
    assert len(sent) < 1000


def test_a_chunksize_is_kept(pool: ClusterExecutor, sent: list[str]) -> None:
    assert list(pool.map(remote.add, range(10), chunksize=5)) == list(range(1, 11))
    assert len(sent) == 2


def test_an_error_comes_at_its_place_and_ends_the_map(pool: ClusterExecutor) -> None:
    results = pool.map(remote.divide, [1, 2, 0, 5])
    assert [next(results), next(results)] == [10, 5]
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert list(results) == []


def test_an_unordered_map_goes_on_after_an_error(pool: ClusterExecutor) -> None:
    results = pool.map_unordered(remote.divide, [1, 0, 2], chunksize=3)
    assert next(results) == 10
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert list(results) == [5]


def test_a_result_that_cannot_be_sent_back_is_an_error_of_its_item(pool: ClusterExecutor) -> None:
    results = pool.map(remote.or_lock, range(5), chunksize=5)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(TypeError, match="the result cannot be pickled: <unlocked"):
        next(results)


def test_an_endless_iterable_is_read_as_far_as_the_buffer(pool: ClusterExecutor) -> None:
    taken: list[int] = []

    def numbers() -> Any:
        for number in count():
            taken.append(number)
            yield number

    results = pool.map(remote.add, numbers(), buffersize=10)
    assert len(taken) == 10
    assert [next(results) for _ in range(100)] == list(range(1, 101))
    assert len(taken) <= 110
    del results


def test_a_buffer_is_used_in_full(pool: ClusterExecutor, client: Client, held: Held) -> None:
    one, other = f"{held.name}-one", f"{held.name}-other"
    met = pool.map(remote.meet, ["", "", one, other], ["", "", other, one], buffersize=2)
    assert next(met) == ""
    assert Event(one, client=client).wait(TIMEOUT)
    assert list(met) == ["", one, other]


def test_a_map_times_out(pool: ClusterExecutor, held: Held) -> None:
    results = pool.map(remote.wait_at, [held.name], timeout=0)
    with pytest.raises(TimeoutError, match="wait_at"):
        next(results)


@pytest.mark.parametrize("buffersize", [None, 1000])
def test_what_was_read_is_handed_out_after_shutdown(client: Client, buffersize: int | None) -> None:
    pool = ClusterExecutor(client)
    results = pool.map(remote.add, range(1000), buffersize=buffersize)
    pool.shutdown()
    assert list(results) == list(range(1, 1001))
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.map(remote.add, [1])


@pytest.mark.parametrize("when_full", ["block", "reject"])
def test_a_bounded_queue_holds_up_no_map(client: Client, when_full: Any) -> None:
    with ClusterExecutor(client, max_queue=0, when_full=when_full) as pool:
        assert list(pool.map(remote.add, range(100), chunksize=1)) == list(range(1, 101))


def test_others_get_their_turn_beside_a_long_map(client: Client, tmp_path: Path) -> None:
    path = str(tmp_path / "made")
    with ClusterExecutor(client, window=0.5) as pool:
        pool.map(remote.note, [path] * 100, map(str, range(100)), chunksize=1)
        pool.submit(remote.note, path, "other").result(TIMEOUT)
    made = Path(path).read_text().split()
    assert len(made) == 101, "what nobody looks at is made all the same"
    assert made[-1] != "other"


def test_a_map_goes_on_without_its_executor(cluster: Any) -> None:
    assert list(ClusterExecutor(cluster.scheduler_address).map(remote.add, range(1000))) == list(range(1, 1001))
    executor = ClusterExecutor(cluster.scheduler_address)
    results, reference, client = executor.map(remote.add, range(1000)), weakref.ref(executor), executor._link.client
    del executor
    gone(reference)
    eventually(lambda: client.status == "closed")
    assert list(results) == list(range(1, 1001))


def test_a_stop_iteration_of_a_call_is_an_error(pool: ClusterExecutor) -> None:
    with pytest.raises(RuntimeError, match="generator raised StopIteration") as raised:
        list(pool.map(remote.stop_at, range(5)))
    assert str(raised.value.__cause__) == "mine"
    with pytest.raises(RuntimeError, match="generator raised StopIteration"):
        list(pool.map_unordered(remote.stop_at, range(5)))


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("buffersize", [1, 2, 3])
def test_what_an_iterable_raises_comes_after_the_results_and_ends_the_map(
    pool: ClusterExecutor, buffersize: int, in_order: bool
) -> None:
    given = iter(["1", "2", "3", "4", "x", "5"])
    mapped = pool.map if in_order else pool.map_unordered
    results = mapped(remote.add, map(int, given), buffersize=buffersize)
    assert sorted(next(results) for _ in range(4)) == [2, 3, 4, 5]
    with pytest.raises(ValueError, match="'x'"):
        next(results)
    assert list(results) == []
    assert list(given) == ["5"]


def test_what_interrupts_the_reading_loses_no_result(pool: ClusterExecutor) -> None:
    def numbers() -> Any:
        yield from (1, 2)
        raise KeyboardInterrupt

    results = pool.map(remote.add, numbers(), buffersize=2)
    with pytest.raises(KeyboardInterrupt):
        next(results)
    assert list(results) == [2, 3]


@pytest.mark.parametrize(("in_lane", "buffersize"), [(False, None), (False, 20), (True, None)])
def test_cancelling_at_the_end_gives_what_has_begun(
    client: Client, held: Held, in_lane: bool, buffersize: int | None
) -> None:
    pool = ClusterExecutor(client, window=0.5)
    place: Any = pool.lane("one", limit=1) if in_lane else pool
    results = place.map(remote.wait_at, [held.name] * 1000, buffersize=buffersize, chunksize=1)
    del place
    held.await_begun()
    others = pool.map(remote.add, [1, 2])
    pool.shutdown(wait=False, cancel_futures=True)
    held.open()
    assert next(results) == held.name
    for cancelled in (results, others):
        with pytest.raises(CancelledError):
            next(cancelled)
        assert list(cancelled) == []
    pool.shutdown()


def test_nothing_is_handed_out_behind_what_was_cancelled(client: Client, held: Held) -> None:
    pool = ClusterExecutor(client, window=0.5)
    results = pool.map(remote.short_or_wait, [held.name, "", "", "", ""], chunksize=1, buffersize=3)
    held.await_begun()
    pool.shutdown(wait=False, cancel_futures=True)
    held.open()
    assert next(results) == held.name
    with pytest.raises(CancelledError):
        next(results)
    assert list(results) == []
    pool.shutdown()


def test_after_a_shutdown_a_map_reads_no_more(client: Client) -> None:
    pool = ClusterExecutor(client)
    numbers = count()
    results = pool.map(remote.add, numbers, buffersize=5)
    pool.shutdown(wait=False)
    assert [next(results) for _ in range(5)] == [1, 2, 3, 4, 5]
    with pytest.raises(RuntimeError, match="after shutdown"):
        next(results)
    assert list(results) == []
    assert next(numbers) == 6
    pool.shutdown()


def test_a_map_with_a_buffer_keeps_its_executor(client: Client) -> None:
    results = ClusterExecutor(client).map(remote.add, range(300), buffersize=3)
    gc.collect()
    assert list(results) == list(range(1, 301))


@pytest.mark.parametrize("timeout", [float("inf"), 1e300, 100])
def test_a_map_may_have_any_timeout(pool: ClusterExecutor, timeout: float) -> None:
    assert list(pool.map(remote.add, range(3), timeout=timeout)) == [1, 2, 3]
    with pytest.raises(TypeError, match="timeout must be a number of seconds, not 'x'"):
        pool.map(remote.add, range(3), timeout="x")  # type: ignore[arg-type]  # that is the point
