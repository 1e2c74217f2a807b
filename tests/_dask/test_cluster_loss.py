"""No call is without an end, and none is made twice, whatever the cluster loses."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster
from support import cluster as remote
from support.common import eventually

from ebbpool._dask.remote import LOST, ONCE, AtMostOnce, dumps, perform
from ebbpool.dask import ClusterExecutor

LIMIT = 40.0
"""Seconds in which a killed worker's successor has started."""

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="workers are killed with SIGKILL"),
]


@pytest.fixture(scope="module")
def two_workers() -> Iterator[Any]:
    """Return a client of a cluster of two processes; a call that has killed two workers is given up."""
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def test_a_call_whose_worker_dies_ends_and_is_not_made_again(two_workers: Client, tmp_path: Path) -> None:
    path = tmp_path / "ran"
    with ClusterExecutor(two_workers, window=1.0) as pool:
        with pytest.raises(
            BrokenExecutor, match=r"support\.cluster\.kill_own_worker was lost with the worker tcp://.*tried once"
        ):
            pool.submit(remote.kill_own_worker, str(path)).result(LIMIT)
        assert pool.submit(remote.add, 1).result(LIMIT) == 2
    assert path.read_text() == "run\n"


def test_a_call_that_may_be_made_again_is_given_up_in_the_end(two_workers: Client, tmp_path: Path) -> None:
    path = tmp_path / "ran"
    with (
        ClusterExecutor(two_workers, rerun=True) as pool,
        pytest.raises(BrokenExecutor, match=r"kill_own_worker was lost with the worker tcp://.*; it was tried 2 times"),
    ):
        pool.submit(remote.kill_own_worker, str(path)).result(LIMIT)
    assert path.read_text() == "run\n" * 2


def test_a_map_says_that_it_lost_a_worker(two_workers: Client, tmp_path: Path) -> None:
    path = tmp_path / "ran"
    with ClusterExecutor(two_workers) as pool, pytest.raises(BrokenExecutor, match="kill_own_worker was lost"):
        list(pool.map(remote.kill_own_worker, [str(path)]))
    assert path.read_text() == "run\n"


def test_a_call_whose_result_is_lost_is_not_made_again(two_workers: Client, tmp_path: Path) -> None:
    path = tmp_path / "ran"
    two_workers.register_plugin(AtMostOnce())
    call = dumps((remote.note, (str(path),), {}, {}))
    key = f"{ONCE}-test-1"
    future = two_workers.submit(perform, "test", key, [call], key=key, pure=False)
    found = two_workers.who_has([future])
    while not found.get(future.key):
        future.exception(LIMIT)
        found = two_workers.who_has([future])
    (holder,) = found[future.key]
    pids = two_workers.run(os.getpid)
    os.kill(pids[holder], signal.SIGKILL)
    two_workers.wait_for_workers(2, timeout=LIMIT)
    ((state, worker, _),) = future.result(LIMIT)
    # The death may be noticed only as the result is asked for; either way the call is not made again.
    assert (state, worker) == (LOST, holder)
    assert path.read_text() == "run\n"


def test_no_call_is_made_twice_after_a_new_connection(two_workers: Client, tmp_path: Path) -> None:
    path = tmp_path / "ran"
    client: Any = two_workers
    with ClusterExecutor(client, window=1.0) as pool:
        # What a scheduler that was started anew does not have.
        client.unregister_scheduler_plugin("ebbpool")
        before = client.scheduler_comm
        client.loop.add_callback(before.comm.abort)
        eventually(lambda: client.status == "running" and client.scheduler_comm not in (before, None))
        with pytest.raises(BrokenExecutor, match=r"kill_own_worker was lost .* tried once"):
            pool.submit(remote.kill_own_worker, str(path)).result(LIMIT)
        assert pool.submit(remote.add, 1).result(LIMIT) == 2
    assert path.read_text() == "run\n"


@pytest.mark.parametrize("with_own_loop", [False, True])
def test_calls_end_when_their_client_is_closed(client: Client, cluster: Any, with_own_loop: bool) -> None:
    own = Client(cluster.scheduler_address if with_own_loop else cluster, set_as_default=False)
    pool = ClusterExecutor(own)
    futures = [pool.submit(remote.wait_at, "closed-client") for _ in range(5)]
    own.close()
    try:
        for future in futures:
            with pytest.raises(BrokenExecutor, match=r"support\.cluster\.wait_at .*[Cc]lient"):
                future.result(LIMIT)
        pool.shutdown(timeout=LIMIT)
    finally:
        remote.Event("closed-client-open", client=client).set()


def test_a_client_that_was_closed_is_left_alone(client: Client, cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Client(cluster, set_as_default=False)
    pool = ClusterExecutor(own)
    link = pool._link
    # As while only short calls are made: more are on their way than there are places.
    monkeypatch.setattr(link._pace, "calls", lambda *_: 20)
    link._fit()
    try:
        futures = [pool.submit(remote.wait_at, "left-alone") for _ in range(20)]
        eventually(lambda: len(link._outbox) == 16)
        own.close()
        for future in futures:
            with pytest.raises(BrokenExecutor, match=r"wait_at .*[Cc]lient"):
                future.result(LIMIT)
        eventually(lambda: not link._outbox)
        pool.shutdown(timeout=LIMIT)
    finally:
        remote.Event("left-alone-open", client=client).set()
