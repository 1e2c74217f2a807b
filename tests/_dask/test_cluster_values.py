"""What goes to the cluster and comes back: odd errors, odd results, short calls in one task, large arguments."""

from __future__ import annotations

import functools
import logging
import operator
import os
import threading
from concurrent.futures import wait
from typing import Any

import pytest
from distributed import Client
from support import cluster as remote
from support.common import LONG, TIMEOUT, eventually
from support.dask import LIMIT, Held, making, pace, packing

from ebbpool.dask import ClusterExecutor


@pytest.mark.parametrize(
    ("fn", "args", "named"),
    [
        (threading.Lock, (), r"the result cannot be pickled: <unlocked _thread\.lock"),
        (remote.OnlyThere, (), "the result of .*OnlyThere cannot be unpickled here: .*not here"),
        (remote.fail, (remote.Strange, 1, 2), r"the error cannot be pickled: Strange\('1 and 2'\)"),
        (remote.fail, (remote.Fickle, "comes back as something else"), "the error cannot be pickled: .*as 'no error'"),
        (remote.fail, (remote.Fickle, "has no text"), "the error of .*fail cannot be unpickled here: .*'not here'"),
        (remote.be_unruly, (1,), "the error cannot be pickled: <.*Unruly object"),
        (remote.be_unruly, (2,), "the result cannot be pickled: <.*Unruly object"),
    ],
)
def test_what_cannot_be_sent_back_is_named(pool: ClusterExecutor, fn: Any, args: Any, named: str) -> None:
    with pytest.raises(TypeError, match=named) as caught:
        pool.submit(fn, *args).result(TIMEOUT)
    assert remote.Strange not in args or "in fail" in str(caught.value.__cause__)
    assert pool.submit(remote.add, 1).result(TIMEOUT) == 2


def test_an_item_whose_outcome_cannot_be_sent_or_read_spoils_no_other(pool: ClusterExecutor) -> None:
    results = pool.map_unordered(remote.be_unruly, [0, 1, 2, 3, 4], chunksize=5)
    assert next(results) == 0
    for named in ("error cannot be pickled", "result cannot be pickled", "cannot be unpickled here: .*not here"):
        with pytest.raises(TypeError, match=named):
            next(results)
    assert list(results) == [4]
    with pytest.raises(TypeError, match=r"an item for <function given .* cannot be pickled: <unlocked"):
        list(pool.map(remote.given, [1, threading.Lock()], chunksize=2))


def test_a_long_traceback_is_cut(pool: ClusterExecutor) -> None:
    error = pool.submit(remote.fail, ValueError, 10 * making.TEXT * "x").exception(TIMEOUT)
    assert error is not None and len(str(error)) == 10 * making.TEXT
    assert making.TEXT < len(str(error.__cause__)) < 2 * making.TEXT
    assert "characters are left out" in str(error.__cause__)


def test_a_context_variable_that_the_worker_lacks_is_named() -> None:
    call = making.dumps((remote.add, (1,), {}, {"support.cluster:NOTHING": 1}))
    ((state, packed, _),) = making.perform("topic", "key", [call])
    assert state == making.RAISED
    assert str(making.error_of(packed)).startswith("there is no context variable 'support.cluster:NOTHING'")


@pytest.fixture
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls be short also on a machine that keeps their thread waiting."""
    monkeypatch.setattr(making, "perf_counter", lambda: 0.0)
    monkeypatch.setattr(making, "HANDED_BACK", LONG)


@pytest.mark.usefixtures("no_time_passes")
def test_short_calls_share_tasks_of_the_cluster_and_each_has_its_own_outcome(
    pool: ClusterExecutor, sent: list[list[Any]]
) -> None:
    futures = [pool.submit(remote.divide, number % 3) for number in range(1000)]
    wait(futures, LIMIT)
    for number, future in enumerate(futures):
        if number % 3:
            assert future.result(0) == 10 / (number % 3)
        else:
            assert isinstance(future.exception(0), ZeroDivisionError)
    assert sum(map(len, sent)) == 1000 and len(sent) < 500


def test_what_shares_a_task_with_a_call_that_takes_its_time_is_handed_back(
    client: Client, sent: list[list[Any]], held: Held
) -> None:
    with ClusterExecutor(client) as pool:
        wait([pool.submit(remote.wait_at, "") for _ in range(300)], LIMIT)
        futures = [pool.submit(remote.wait_at, held.name if number == 50 else "") for number in range(300)]
        # All but one end, although it had been put into one task with others.
        assert len(wait([future for future in futures if future is not futures[50]], LIMIT).not_done) == 0
        assert futures[50].running() and not futures[50].cancel()
        held.open()
        assert futures[50].result(TIMEOUT) == held.name
    assert sum(map(len, sent)) == 600


@pytest.mark.usefixtures("no_time_passes")
def test_a_call_that_is_not_known_to_be_short_leaves_what_follows_here(
    client: Client, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "CAUTION", LONG)
    with ClusterExecutor(client, window=1.0) as pool:
        wait([pool.submit(remote.add, number) for number in range(300)], LIMIT)
        assert pool.stats().max_workers > 2
        futures = [pool.submit(remote.wait_at, held.name) for _ in range(10)]
        eventually(lambda: sum(future.running() for future in futures) >= 2)
        assert pool.stats().max_workers == 2
        assert sum(future.cancel() for future in futures) >= 7
        held.open()


def test_a_pace_lets_short_calls_share() -> None:
    seen = pace.Pace()
    assert seen.time("f") is None and seen.calls(4, 0.0) == 4, "nothing is known at first"
    seen.expect("f", 0.0)
    seen.note("f", 0.001, 0.0)
    assert seen.time("f") == 0.001
    assert [seen.calls(width, 0.0) for width in (4, 100, 1000)] == [4 * pace.SHARING, pace.SHARERS, 1000]
    known = []
    for seconds in [1.0, *[0.001] * 40]:
        seen.note("f", seconds, 0.0)
        known.append(seen.time("f") is not None)
    assert not any(known[:11]) and known[-1], "a longer time counts at once, and is forgotten slowly"


@pytest.mark.parametrize("name", ["unknown", "long"])
def test_a_call_that_is_not_known_to_be_short_keeps_others_from_sharing_for_a_moment(name: str) -> None:
    seen = pace.Pace()
    seen.note("long", 2 * pace.SHORT, 0.0)
    seen.note("short", 0.001, 0.0)
    seen.expect(name, 10.0)
    assert seen.calls(4, 10.0) == 4
    assert seen.calls(4, 10.0 + pace.CAUTION) > 4


def test_a_pace_remembers_only_so_many_functions() -> None:
    seen = pace.Pace()
    seen.note("old", 0.001, 0.0)
    for number in range(pace.KNOWN):
        seen.note("used", 0.001, 0.0)
        seen.note(str(number), 0.001, 0.0)
    assert seen.time("old") is None and seen.time("used") == 0.001
    for number in range(3 * pace.KNOWN):
        seen.expect(f"never called {number}", 0.0)
    assert len(seen._unsure) <= pace.KNOWN


def test_a_large_argument_is_sent_once(pool: ClusterExecutor, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "concurrent.futures")
    large, other = os.urandom(packing.LARGE + 1), os.urandom(packing.LARGE + 1)
    futures = [pool.submit(remote.size_of, large, large, b"small") for _ in range(5)]
    assert {future.result(TIMEOUT) for future in futures} == {2 * packing.LARGE + 7}
    assert pool.submit(remote.size_of, data=other).result(TIMEOUT) == packing.LARGE + 1
    assert pool.submit(remote.size_of, large).result(TIMEOUT) == packing.LARGE + 1
    fn = functools.partial(remote.size_of, os.urandom(packing.LARGE + 1))
    assert list(pool.map(fn, [b"1"] * 20, chunksize=1)) == [packing.LARGE + 2] * 20
    first, second, third = [message for message in caplog.messages if "was sent to the cluster, once" in message]
    assert first.startswith("argument 0 of <function size_of") and second.startswith("argument 'data' of")
    assert third.startswith("the function functools.partial(<function size_of")


def test_a_large_argument_is_what_it_was_at_its_submit(pool: ClusterExecutor) -> None:
    large = bytearray(packing.LARGE)
    futures = []
    for _ in range(3):
        futures.append(pool.submit(remote.append, large))
        large.append(0)
    # A call changes what is its own, and not what others get.
    futures += [pool.submit(remote.append, large) for _ in range(2)]
    assert [future.result(TIMEOUT) - packing.LARGE for future in futures] == [1, 2, 3, 4, 4]
    assert pool.submit(operator.is_, large, large).result(TIMEOUT), "the same object twice is one object there"
    assert not pool.submit(operator.is_, large, bytearray(large)).result(TIMEOUT)


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
