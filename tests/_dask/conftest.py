"""Clusters for the tests here, which are left out where distributed is not installed."""

from __future__ import annotations

import importlib.util
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.common import eventually
from support.loops import each_loop  # noqa: F401  (a fixture)

if importlib.util.find_spec("distributed") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def no_thread_left_behind() -> Iterator[None]:
    """Fail a test that leaves a thread of ours behind. Those of distributed come and go as it likes."""
    before = set(threading.enumerate())

    def left() -> list[threading.Thread]:
        own = re.compile(r"ebbpool-\d+_|cluster")
        return [thread for thread in threading.enumerate() if thread not in before and own.match(thread.name)]

    yield
    eventually(lambda: not left(), f"threads are left: {left()}")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Return a cluster of one worker with two threads, in this process."""
    from distributed import LocalCluster

    with LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def two() -> Iterator[Any]:
    """Return a cluster of two processes with one thread each; a call that has killed two workers is given up."""
    import dask
    from distributed import LocalCluster

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
    ):
        yield cluster


@pytest.fixture
def two_workers(two: Any) -> Iterator[Any]:
    """Return a client of the two processes, when both are there."""
    from distributed import Client
    from support.dask import await_two

    with Client(two, set_as_default=False) as client:
        await_two(client)
        yield client


@pytest.fixture(autouse=True)
def frequent_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have executors look after their cluster all the time."""
    from support.dask import link

    monkeypatch.setattr(link, "LOOK", 0.05)


@pytest.fixture(scope="session")
def client(cluster: Any) -> Iterator[Any]:
    from distributed import Client

    with Client(cluster, set_as_default=False) as client:
        yield client


@pytest.fixture
def pool(client: Any) -> Iterator[Any]:
    from ebbpool.dask import ClusterExecutor

    with ClusterExecutor(client) as pool:
        yield pool


@pytest.fixture
def held(client: Any) -> Iterator[Any]:
    """Return what holds calls to `support.cluster.wait_at`, at the latest until the end of the test."""
    from support.dask import Held

    with Held(client) as held:
        yield held


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the calls that executors send."""
    from support.dask import link

    parcels: list[Any] = []
    make = link.Link._make

    def noting(self: link.Link, key: str, parcel: Any) -> Any:
        parcels.append(parcel)
        return make(self, key, parcel)

    monkeypatch.setattr(link.Link, "_make", noting)
    return parcels
