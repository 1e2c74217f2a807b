"""The executor over a Dask cluster in the place of a thread pool: one cluster for all tests."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import dask
from distributed import Client, LocalCluster

from ebbpool.dask import ClusterExecutor

THREADS = 5
"""As many as CPython's tests ask for."""
ADDRESS = "EBBPOOL_CONFORMANCE_CLUSTER"
"""The environment variable with the address of the cluster."""


@contextlib.contextmanager
def cluster() -> Iterator[None]:
    """Have a cluster, which the environment names.

    It belongs to a process of its own: CPython's tests look at what a process has, and stop what multiprocessing needs.
    """
    process = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    with process:
        os.environ[ADDRESS] = process.stdout.readline().strip()
        try:
            yield
        finally:
            process.stdin.close()


def serve() -> None:
    """Run a cluster of one process, tell its address, and end with the input."""
    with LocalCluster(n_workers=1, threads_per_worker=THREADS, processes=True, dashboard_address=":0") as found:
        print(found.scheduler_address, flush=True)
        sys.stdin.read()


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
    """An executor over that cluster, with the parameters of a `ThreadPoolExecutor`.

    How many threads there are is the cluster's affair. What is to run in each thread first has no place there.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        thread_name_prefix: str = "",
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        if initializer is not None:
            raise TypeError("an executor over a cluster has no initializer")
        if max_workers is not None and max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        super().__init__(client(), window=1.0, thread_name_prefix=thread_name_prefix)


if __name__ == "__main__":
    serve()
