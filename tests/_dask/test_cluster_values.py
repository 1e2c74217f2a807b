"""What goes to the cluster and comes back: odd errors, odd results, short calls in one task, large arguments."""

from __future__ import annotations

import functools
import itertools
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest
from distributed import Client, Event
from support import cluster as remote
from support.common import LONG, TIMEOUT, eventually
from support.dask import link as links
from support.dask import making, pace, packing

from ebbpool.dask import ClusterExecutor


@pytest.mark.parametrize(
    ("way", "named"),
    [
        ("comes back as something else", "the error cannot be pickled: .*it comes back as 'no error'"),
        ("ends the pickling", r"the error cannot be pickled: .*Undone\(\)"),
        ("has no text", "the error of .*raise_fickle cannot be unpickled here: ValueError.'not here'"),
        ("is not there", "the error of .*raise_fickle cannot be unpickled here: ValueError.'not here'"),
    ],
)
def test_an_error_that_cannot_be_carried_over_is_named(pool: ClusterExecutor, way: str, named: str) -> None:
    with pytest.raises(TypeError, match=named):
        pool.submit(remote.raise_fickle, way).result(TIMEOUT)
    results = pool.map(remote.raise_fickle, [way])
    with pytest.raises((TypeError, remote.Fickle), match=r"cannot be pickled|only there"):
        next(results)
    assert pool.submit(remote.add, 1).result(TIMEOUT) == 2


@pytest.mark.parametrize(
    ("fn", "named"),
    [
        (remote.a_lock, r"the result cannot be pickled: <unlocked _thread\.lock"),
        (remote.a_future, "the result cannot be pickled: <Future"),
        (remote.result_only_there, r"the result of .*result_only_there cannot be unpickled here: .*not here"),
        (remote.raise_strange, r"the error cannot be pickled: Strange\('1 and 2'\)"),
    ],
)
def test_what_cannot_be_sent_back_is_named(pool: ClusterExecutor, fn: Any, named: str) -> None:
    with pytest.raises(TypeError, match=named) as caught:
        pool.submit(fn).result(TIMEOUT)
    assert fn is not remote.raise_strange or "in raise_strange" in str(caught.value.__cause__)


def test_a_long_traceback_is_cut(pool: ClusterExecutor) -> None:
    error = pool.submit(remote.raise_long, 10 * making.TEXT).exception(TIMEOUT)
    assert error is not None and len(str(error)) == 10 * making.TEXT
    assert making.TEXT < len(str(error.__cause__)) < 2 * making.TEXT
    assert "characters are left out" in str(error.__cause__)


def test_a_context_variable_that_the_worker_lacks_is_named() -> None:
    call = making.dumps((remote.add, (1,), {}, {"support.cluster:NOTHING": 1}))
    ((state, packed, _),) = making.perform("topic", "key", [call])
    assert state == making.RAISED
    assert str(making.error_of(packed)).startswith("there is no context variable 'support.cluster:NOTHING'")


def test_an_item_that_cannot_be_sent_is_named(pool: ClusterExecutor) -> None:
    with pytest.raises(TypeError, match=r"an item for <function given .* cannot be pickled: <unlocked"):
        list(pool.map(remote.given, [1, threading.Lock()], chunksize=2))


def test_threads_may_share_the_iterator_of_a_map(pool: ClusterExecutor) -> None:
    results = pool.map(remote.add, range(3000), chunksize=7)
    with ThreadPoolExecutor(4) as threads:
        found = [threads.submit(list, results) for _ in range(4)]
    assert sorted(itertools.chain(*(future.result() for future in found))) == list(range(1, 3001))


class Counted:
    """What an executor has sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tasks: list[list[str]] = []
        close = links.Link._close

        def counting(link: links.Link, shipment: Any) -> None:
            if shipment.key in link._shipments:
                self.tasks.append([parcel.name for parcel in shipment.parcels])
            close(link, shipment)

        monkeypatch.setattr(links.Link, "_close", counting)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


@pytest.fixture
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls be short also on a machine that keeps their thread waiting."""
    monkeypatch.setattr(making, "perf_counter", lambda: 0.0)
    monkeypatch.setattr(making, "HANDED_BACK", LONG)


@pytest.mark.usefixtures("no_time_passes")
def test_short_calls_share_tasks_of_the_cluster(pool: ClusterExecutor, sent: Counted) -> None:
    futures = [pool.submit(remote.add, number) for number in range(1000)]
    assert [future.result(TIMEOUT) for future in futures] == list(range(1, 1001))
    assert sum(map(len, sent.tasks)) == 1000 and len(sent.tasks) < 500


def test_each_of_the_calls_that_share_a_task_has_its_own_outcome(pool: ClusterExecutor) -> None:
    futures = [pool.submit(remote.divide, number % 3) for number in range(600)]
    wait(futures, TIMEOUT)
    for number, future in enumerate(futures):
        if number % 3:
            assert future.result(0) == 10 / (number % 3)
        else:
            assert isinstance(future.exception(0), ZeroDivisionError)


def test_what_shares_a_task_with_a_call_that_takes_its_time_is_handed_back(client: Client, sent: Counted) -> None:
    name = f"shared-{os.urandom(8).hex()}"
    with ClusterExecutor(client) as pool:
        wait([pool.submit(remote.short_or_wait, "") for _ in range(300)], TIMEOUT)
        futures = [pool.submit(remote.short_or_wait, name if number == 50 else "") for number in range(300)]
        # All but one end, although it had been put into one task with others.
        assert len(wait([future for future in futures if future is not futures[50]], TIMEOUT).not_done) == 0
        assert futures[50].running() and not futures[50].cancel()
        Event(f"{name}-open", client=client).set()
        assert futures[50].result(TIMEOUT) == name
    assert sum(map(len, sent.tasks)) == 600


@pytest.mark.usefixtures("no_time_passes")
def test_a_call_that_is_not_known_to_be_short_leaves_what_follows_here(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "CAUTION", LONG)
    name = f"unknown-{os.urandom(8).hex()}"
    with ClusterExecutor(client, window=1.0) as pool:
        wait([pool.submit(remote.add, number) for number in range(300)], TIMEOUT)
        assert pool.stats().max_workers > 2
        futures = [pool.submit(remote.wait_at, name) for _ in range(10)]
        try:
            eventually(lambda: sum(future.running() for future in futures) >= 2)
            assert pool.stats().max_workers == 2
            assert sum(future.cancel() for future in futures) >= 7
        finally:
            Event(f"{name}-open", client=client).set()


def test_a_large_argument_is_sent_once(
    pool: ClusterExecutor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG, "concurrent.futures")
    large, other = os.urandom(packing.LARGE + 1), os.urandom(packing.LARGE + 1)
    futures = [pool.submit(remote.size_of, large, large, b"small") for _ in range(5)]
    assert {future.result(TIMEOUT) for future in futures} == {2 * packing.LARGE + 7}
    assert pool.submit(remote.size_of, data=other).result(TIMEOUT) == packing.LARGE + 1
    assert pool.submit(remote.size_of, large).result(TIMEOUT) == packing.LARGE + 1
    told = [record.getMessage() for record in caplog.records if "was sent to the cluster, once" in record.getMessage()]
    assert len(told) == 2
    assert told[0].startswith("argument 0 of <function size_of") and told[1].startswith("argument 'data' of")


def test_a_large_argument_is_what_it_was_at_its_submit(pool: ClusterExecutor) -> None:
    large = bytearray(packing.LARGE)
    futures = []
    for _ in range(3):
        futures.append(pool.submit(remote.append, large))
        large.append(0)
    # A call changes what is its own, and not what others get.
    futures += [pool.submit(remote.append, large) for _ in range(2)]
    assert [future.result(TIMEOUT) - packing.LARGE for future in futures] == [1, 2, 3, 4, 4]


def test_the_same_large_object_twice_is_the_same_there(pool: ClusterExecutor) -> None:
    large = bytearray(packing.LARGE)
    assert pool.submit(remote.are_same, large, large).result(TIMEOUT)
    assert not pool.submit(remote.are_same, large, bytearray(large)).result(TIMEOUT)


def test_the_function_of_a_map_is_sent_once(pool: ClusterExecutor, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "concurrent.futures")
    fn = functools.partial(remote.size_of, os.urandom(packing.LARGE + 1))
    assert list(pool.map(fn, [b"1"] * 20, chunksize=1)) == [packing.LARGE + 2] * 20
    told = [record.getMessage() for record in caplog.records if "was sent to the cluster, once" in record.getMessage()]
    assert len(told) == 1 and told[0].startswith("the function functools.partial(<function size_of")


def test_large_arguments_do_not_stay_on_the_cluster(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def there() -> int:
        keys = client.run_on_scheduler(lambda dask_scheduler: [str(key) for key in dask_scheduler.tasks])
        return sum(key.startswith("ebbpool-part-") for key in keys)

    monkeypatch.setattr(packing, "KEPT", 3 * packing.LARGE)
    with ClusterExecutor(client) as pool:
        for _ in range(5):
            assert pool.submit(remote.size_of, os.urandom(packing.LARGE + 1)).result(TIMEOUT) == packing.LARGE + 1
        eventually(lambda: 1 <= there() <= 2)
    eventually(lambda: there() == 0)


@pytest.mark.parametrize("number", [1, 2])
def test_what_cannot_be_shown_is_an_error_all_the_same(pool: ClusterExecutor, number: int) -> None:
    ((state, packed, _),) = making.perform("nobody", "key", [making.dumps((remote.be_unruly, (number,), {}, {}))])
    assert state == making.RAISED
    assert isinstance(making.error_of(packed), TypeError)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pool.submit(remote.be_unruly, number).result(TIMEOUT)
    results = pool.map_unordered(remote.be_unruly, [0, number, 3], chunksize=3)
    assert next(results) == 0
    with pytest.raises(TypeError, match="cannot be pickled"):
        next(results)
    assert list(results) == [3]
