"""The executor over a Dask cluster in the place of a thread pool: one cluster for all tests."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Iterator

import dask
from distributed import Client, LocalCluster

from ebbpool.dask import ClusterExecutor

THREADS = 5
"""As many as CPython's tests ask for."""
ADDRESS = "EBBPOOL_CONFORMANCE_CLUSTER"
"""The environment variable with the address of the cluster."""


@contextlib.contextmanager
def cluster() -> Iterator[None]:
    """Have a cluster of one process, which the environment names."""
    with LocalCluster(n_workers=1, threads_per_worker=THREADS, processes=True, dashboard_address=":0") as found:
        os.environ[ADDRESS] = found.scheduler_address
        yield


@functools.cache
def client() -> Client:
    """Return this process's client of the cluster."""
    # There is no thread then that begins in the middle of a test.
    dask.config.set({"distributed.comm.offload": False})
    found = Client(os.environ[ADDRESS], set_as_default=False)
    # So that CPython's tests are there, as they are here.
    found.run(_find_tests, list(importlib.import_module("test").__path__))
    return found


def _find_tests(paths: list[str]) -> None:
    importlib.import_module("test").__path__[:] = paths


class OnCluster(ClusterExecutor):
    """An executor over that cluster, with the parameters of a `ThreadPoolExecutor` but for its initializer."""

    def __init__(self, max_workers: int | None = None, thread_name_prefix: str = "") -> None:
        if max_workers is not None and max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        super().__init__(client(), window=1.0, thread_name_prefix=thread_name_prefix)
