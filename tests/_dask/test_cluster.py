"""An executor over a Dask cluster is an executor like any other; whatever ends it, nothing of it is left."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from support import cluster as remote
from support.common import TIMEOUT, eventually, run_script
from support.dask import Held, link, making
from support.loops import Loops

from ebbpool import QueueFull
from ebbpool.dask import ClusterExecutor, ClusterLane

LOCK = threading.Lock()


def test_it_is_a_thread_pool_executor_and_shares_its_client_with_others(client: Client) -> None:
    with ClusterExecutor(client) as one, ClusterExecutor(client) as other:
        assert isinstance(one, ThreadPoolExecutor)
        futures = [pool.submit(remote.add, 2, right=5) for pool in (one, other) * 10]
        assert [future.result(TIMEOUT) for future in futures] == [7] * 20
    assert client.status == "running"
    kept = weakref.ref(one._link)
    del one, other, futures
    eventually(lambda: (gc.collect(), kept())[1] is None, "the client does not keep the executors that it had")


def test_a_cluster_executor_may_be_the_default_executor_of_a_loop(client: Client, loops: Loops) -> None:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ClusterExecutor(client))
        added = [asyncio.create_task(asyncio.to_thread(remote.add, number)) for number in range(50)]
        assert await asyncio.gather(*added) == list(range(1, 51))
        return [await asyncio.to_thread(remote.where), await loop.run_in_executor(None, remote.where)]

    assert all(place.startswith("inproc://") for place in loops(main))


def test_the_cluster_has_as_many_calls_as_the_window_allows_and_the_others_can_be_taken_back(
    client: Client, held: Held, tmp_path: Path
) -> None:
    with ClusterExecutor(client, window=1.0, max_queue=3, when_full="reject") as pool:
        there = [pool.submit(remote.wait_at, held.name) for _ in range(2)]
        held.await_begun()
        eventually(lambda: pool.stats().running == 2)
        assert all(future.running() and not future.cancel() and not future.cancelled() for future in there)
        assert [task.name for task in pool.running()] == ["support.cluster.wait_at"] * 2
        waiting = [pool.submit(remote.note, str(tmp_path / "ran")) for _ in range(3)]
        with pytest.raises(QueueFull, match="max_queue=3"):
            pool.submit(remote.add, 1)
        assert not any(future.running() for future in waiting)
        assert all(future.cancel() for future in waiting)
        held.open()
        assert [future.result(TIMEOUT) for future in there] == [held.name] * 2
    assert not (tmp_path / "ran").exists()
    with pytest.raises(CancelledError):
        waiting[0].result(0)


def test_each_call_is_made_with_all_that_it_was_given(pool: ClusterExecutor, tmp_path: Path) -> None:
    path = str(tmp_path / "ran")
    wait([pool.submit(remote.note, path), pool.submit(remote.note, path)], TIMEOUT)
    assert Path(path).read_text() == "run\nrun\n", "the same call twice is two calls"
    options = {"key": 1, "pure": 2, "workers": 3, "retries": 4, "priority": 5, "resources": 6, "actor": 7, "fn": 8}
    assert pool.submit(remote.given, 0, **options).result(TIMEOUT) == ((0,), options)


def test_shutdown_says_what_is_still_with_the_cluster_and_where(
    client: Client, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "ASKING", TIMEOUT)
    pool = ClusterExecutor(client)
    future = pool.submit(remote.wait_at, held.name)
    held.await_begun()
    with pytest.raises(ValueError, match="timeout"):
        pool.shutdown(timeout=-1)
    assert pool.submit(remote.add, 1).result(TIMEOUT) == 2, "what is refused changes nothing"
    with pytest.raises(TimeoutError, match=r"cluster\.wait_at, sent .* s ago, on inproc://"):
        pool.shutdown(timeout=0)
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(remote.add, 1)
    held.open()
    assert future.result(TIMEOUT) == held.name
    pool.shutdown()


def test_an_error_has_the_traceback_of_the_worker(pool: ClusterExecutor) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        pool.submit(remote.divide, 0).result(TIMEOUT)
    assert isinstance(caught.value.__cause__, making.RemoteTraceback)
    assert "in divide" in str(caught.value.__cause__)
    # What is no `Exception` is the call's outcome, too.
    with pytest.raises(SystemExit, match="3"):
        pool.submit(sys.exit, 3).result(TIMEOUT)
    assert pool.submit(remote.add, 1).result(TIMEOUT) == 2


@pytest.mark.parametrize(
    ("submit", "named"),
    [
        (lambda pool: pool.submit(remote.given, 1, LOCK), "argument 1 of <function given.*<unlocked"),
        (lambda pool: pool.submit(remote.given, lock=LOCK), "argument 'lock' of <function given.*<unlocked"),
        (lambda pool: pool.submit(LOCK.acquire), "fn cannot be pickled: <built-in method acquire"),
        (lambda pool: pool.map(LOCK.acquire, [1]), "fn cannot be pickled: <built-in method acquire"),
        (lambda pool: pool.lane("a", limit=1).submit(remote.given, LOCK), "argument 0 .*<unlocked"),
        (lambda pool: pool.submit_first(remote.given, LOCK), "argument 0 .*<unlocked"),
        (lambda pool: pool.submit_later(0, remote.given, LOCK), "argument 0 .*<unlocked"),
        (lambda pool: pool.schedule(1, remote.given, LOCK), "argument 0 .*<unlocked"),
        (lambda pool: pool.submit(3), "fn must be callable, not 3"),
    ],
)
def test_what_cannot_be_sent_is_named_at_once(
    pool: ClusterExecutor, submit: Callable[[ClusterExecutor], object], named: str
) -> None:
    with pytest.raises(TypeError, match=named):
        submit(pool)


def test_every_way_in(pool: ClusterExecutor, tmp_path: Path) -> None:
    lane = pool.lane("few", limit=1)
    for submit in (pool.submit, pool.submit_first, partial(pool.submit_later, 0), lane.submit):
        assert submit(remote.where).result(TIMEOUT).startswith("inproc://")
    path = tmp_path / "ran"
    schedule = pool.schedule(0.01, remote.note, str(path))
    eventually(lambda: path.exists() and len(path.read_text().splitlines()) > 1)
    schedule.cancel()
    with pytest.raises(NotImplementedError, match="map with a buffersize"):
        pool.stream(range, 3)

    async def main() -> list[int]:
        assert (await pool.run(remote.where)).startswith("inproc://")
        assert (await lane.run(remote.where)).startswith("inproc://")
        with pytest.raises(ZeroDivisionError):
            await pool.run(remote.divide, 0)
        return [result async for result in pool.amap(remote.add, range(20))]

    assert asyncio.run(main()) == list(range(1, 21))


def test_a_lane_is_one_of_the_cluster(pool: ClusterExecutor, held: Held) -> None:
    lane = pool.lane("few", limit=1)
    assert isinstance(lane, ClusterLane)
    first = lane.submit(remote.wait_at, held.name)
    held.await_begun()
    second = lane.submit(remote.where)
    assert pool.submit(remote.add, 1).result(TIMEOUT) == 2
    assert lane.stats().queued == 1
    held.open()
    assert first.result(TIMEOUT) == held.name and second.result(TIMEOUT).startswith("inproc://")
    assert list(lane.map(remote.add, range(50))) == list(range(1, 51))


def test_the_window_follows_the_cluster(cluster: Any, client: Client) -> None:
    with ClusterExecutor(client) as pool:
        assert pool._max_workers == 4
        cluster.scale(2)
        try:
            eventually(lambda: pool._max_workers == 8)
        finally:
            cluster.scale(1)
        eventually(lambda: pool._max_workers == 4)


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"window": 0}, ValueError, "window must be greater than 0"),
        ({"window": float("inf")}, ValueError, "window must be a finite"),
        ({"timeout": -1}, ValueError, "timeout .* -1"),
        ({"when_full": "caller_runs"}, ValueError, "when_full must be one of 'block', 'reject', not 'caller_runs'"),
        ({"max_queue": -1}, ValueError, "max_queue .* -1"),
    ],
)
def test_bad_arguments_are_named(client: Client, options: Any, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        ClusterExecutor(client, **options)


def test_bad_clients_are_named(cluster: Any) -> None:
    with pytest.raises(TypeError, match=r"client_or_address .* not 3"):
        ClusterExecutor(3)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(TimeoutError, match=r"client_or_address='tcp://127.0.0.1:9' within timeout=0.2 s"):
        ClusterExecutor("tcp://127.0.0.1:9", timeout=0.2)
    closed = Client(cluster, set_as_default=False)
    pool = ClusterExecutor(closed)
    closed.close()
    with pytest.raises(RuntimeError, match="is closed"):
        pool.submit(remote.add, 1)
    with pytest.raises(ValueError, match="must be a client that is connected"):
        ClusterExecutor(closed)
    pool.shutdown()


def test_other_versions_are_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = client.get_versions(packages=["ebbpool"])
    worker = next(iter(versions["workers"].values()))
    worker["packages"] = {**worker["packages"], "python": "3.2.1", "ebbpool": None}
    monkeypatch.setattr(client, "get_versions", lambda packages: versions)
    with pytest.raises(RuntimeError, match=r"the worker inproc://.* has python 3\.2 and not 3\.\d+"):
        ClusterExecutor(client)


def test_a_callback_runs_in_a_thread_of_the_executor_which_it_may_shut_down(cluster: Any, held: Held) -> None:
    pool = ClusterExecutor(cluster.scheduler_address)
    client = pool._link.client
    told: Future[tuple[str, str]] = Future()

    def called_back(_: object) -> None:
        # In the thread of the client's loop this would wait for itself.
        client.nthreads()
        try:
            pool.shutdown()
        except RuntimeError as error:
            told.set_result((threading.current_thread().name, str(error)))

    pool.submit(remote.wait_at, held.name).add_done_callback(called_back)
    held.open()
    name, error = told.result(TIMEOUT)
    assert name.startswith("ebbpool-") and "cannot wait for its own pool" in error
    eventually(lambda: client.status == "closed")


def test_a_client_made_for_an_address_is_closed_at_the_end(cluster: Any) -> None:
    with ClusterExecutor(cluster.scheduler_address) as pool:
        assert pool.submit(remote.add, 1).result(TIMEOUT) == 2
    assert pool._link.client.status == "closed"

    async def main() -> Any:
        async with ClusterExecutor(cluster.scheduler_address) as pool:
            asyncio.get_running_loop().set_default_executor(pool)
            assert await asyncio.to_thread(remote.add, 1) == 2
        return pool._link.client

    assert asyncio.run(main()).status == "closed"


def test_an_executor_that_is_dropped_closes_its_client_when_all_is_done(cluster: Any, held: Held) -> None:
    used, unused = (ClusterExecutor(cluster.scheduler_address, window=0.5) for _ in range(2))
    clients = [pool._link.client for pool in (used, unused)]
    futures = [used.submit(remote.wait_at, held.name), used.submit(remote.add, 1)]
    del used, unused
    gc.collect()
    eventually(lambda: clients[1].status == "closed")
    assert clients[0].status == "running"
    held.open()
    assert [future.result(TIMEOUT) for future in futures] == [held.name, 2]
    eventually(lambda: clients[0].status == "closed")


SCRIPT = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
from distributed import Client, LocalCluster
from ebbpool.dask import ClusterExecutor
from support import cluster as remote

cluster = LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_is_told_that_the_connection_is_its_parents() -> None:
    script = """
    pool = ClusterExecutor(cluster.scheduler_address)
    assert pool.submit(remote.add, 1).result() == 2
    child = os.fork()
    if not child:
        try:
            pool.submit(remote.add, 1)
        except RuntimeError as error:
            print(error, flush=True)
        pool.shutdown()
        print("child", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    print(pool.submit(remote.add, 2).result(), flush=True)
    pool.shutdown()
    cluster.close()
    """
    told = run_script(script, SCRIPT, timeout=2 * TIMEOUT)
    assert told.stdout.splitlines() == [
        "cannot schedule new futures: the client's connection belongs to the parent process",
        "child",
        "3",
    ], told.stderr


@pytest.mark.parametrize("made_for", ["cluster.scheduler_address", "Client(cluster)"])
def test_the_interpreter_ends_when_all_calls_are_done(made_for: str, tmp_path: Path) -> None:
    path = str(tmp_path / "ran")
    script = f"""
    pool = ClusterExecutor({made_for}, window=1.0)
    for number in range(5):
        pool.submit(remote.note, {path!r})
    """
    told = run_script(script, SCRIPT, timeout=2 * TIMEOUT)
    assert told.returncode == 0, told.stderr
    assert Path(path).read_text() == "run\n" * 5


def test_spare_threads_that_do_not_fit_any_more_stop_no_call(pool: ClusterExecutor) -> None:
    # As if the cluster had been larger.
    pool.resize(max_workers=40, min_spare_workers=20)
    futures = [pool.submit(remote.add, number) for number in range(40)]
    assert [future.result(TIMEOUT) for future in futures] == list(range(1, 41))
    assert pool._settings.min_spare_workers <= pool._settings.max_workers
