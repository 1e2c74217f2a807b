"""Whatever ends an executor over a cluster, nothing of it is left, and nothing waits for ever."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from support import cluster as remote
from support.common import TIMEOUT, eventually

from ebbpool.dask import ClusterExecutor

TESTS = Path(__file__).parent.parent


def scripted(text: str) -> str:
    """Run a script with a cluster of its own; return what it has printed."""
    script = f"""
import os
from distributed import Client, LocalCluster
from ebbpool.dask import ClusterExecutor
from support import cluster as remote

def main():
    cluster = LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0")
{text}

if __name__ == "__main__":
    main()
"""
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    told = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert told.returncode == 0, told.stderr
    return told.stdout


def test_a_shutdown_in_a_callback_closes_the_client_in_the_end(cluster: Any) -> None:
    pool = ClusterExecutor(cluster.scheduler_address)
    client = pool._link.client
    told: list[BaseException] = []
    called = threading.Event()

    def called_back(_: object) -> None:
        try:
            pool.shutdown()
        except RuntimeError as error:
            told.append(error)
        called.set()

    name = f"callback-{os.urandom(8).hex()}"
    future = pool.submit(remote.wait_at, name)
    future.add_done_callback(called_back)
    remote.Event(f"{name}-open", client=client).set()
    assert called.wait(TIMEOUT)
    assert "cannot wait for its own pool" in str(told[0])
    eventually(lambda: client.status == "closed")


def test_a_shutdown_that_is_refused_changes_nothing(pool: ClusterExecutor) -> None:
    with pytest.raises(ValueError, match="timeout"):
        pool.shutdown(timeout=-1)
    assert pool.submit(remote.add, 1).result(TIMEOUT) == 2


def test_async_with_ends_when_the_client_is_closed(cluster: Any) -> None:
    async def main() -> Any:
        async with ClusterExecutor(cluster.scheduler_address) as pool:
            asyncio.get_running_loop().set_default_executor(pool)
            assert await asyncio.to_thread(remote.add, 1) == 2
        return pool._link.client

    assert asyncio.run(main()).status == "closed"


@pytest.mark.parametrize("used", [True, False])
def test_an_executor_that_is_dropped_closes_the_client_that_it_has_made(cluster: Any, used: bool) -> None:
    pool = ClusterExecutor(cluster.scheduler_address)
    client = pool._link.client
    if used:
        assert pool.submit(remote.add, 1).result(TIMEOUT) == 2
    del pool
    gc.collect()
    eventually(lambda: client.status == "closed")


def test_what_a_dropped_executor_has_accepted_is_done_first(cluster: Any) -> None:
    pool = ClusterExecutor(cluster.scheduler_address, window=0.5)
    client = pool._link.client
    name = f"dropped-{os.urandom(8).hex()}"
    futures = [pool.submit(remote.wait_at, name), pool.submit(remote.add, 1)]
    del pool
    gc.collect()
    remote.Event(f"{name}-open", client=client).set()
    assert [future.result(TIMEOUT) for future in futures] == [name, 2]
    eventually(lambda: client.status == "closed")


def test_a_client_does_not_keep_the_executors_that_it_had(client: Client) -> None:
    with ClusterExecutor(client) as pool:
        assert pool.submit(remote.add, 1).result(TIMEOUT) == 2
        kept = weakref.ref(pool._link)
    del pool

    def gone() -> bool:
        gc.collect()
        return kept() is None

    eventually(gone)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_is_told_that_the_connection_is_its_parents() -> None:
    told = scripted("""
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
""")
    assert told.splitlines() == [
        "cannot schedule new futures: the client's connection belongs to the parent process",
        "child",
        "3",
    ]


@pytest.mark.parametrize("made_for", ["cluster.scheduler_address", "Client(cluster)"])
def test_the_interpreter_ends_when_all_calls_are_done(made_for: str, tmp_path: Path) -> None:
    path = str(tmp_path / "ran")
    scripted(f"""
    global pool
    pool = ClusterExecutor({made_for}, window=1.0)
    for number in range(5):
        pool.submit(remote.note, {path!r})
""")
    assert Path(path).read_text() == "run\n" * 5


def test_spare_threads_that_do_not_fit_any_more_stop_no_call(pool: ClusterExecutor) -> None:
    # As after many short calls.
    pool._link._pace.note("short", 0.001, 0.0)
    pool._link._fit()
    pool.resize(min_spare_workers=20)
    futures = [pool.submit(remote.add, number) for number in range(40)]
    assert [future.result(TIMEOUT) for future in futures] == list(range(1, 41))
    assert pool._settings.min_spare_workers <= pool._settings.max_workers


def test_a_size_that_is_refused_takes_no_place_in_the_window(
    pool: ClusterExecutor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ValueError("refused")

    monkeypatch.setattr(pool, "resize", refuse)
    monkeypatch.setattr(pool._link._pace, "calls", lambda *_: pool._link.width + 1)
    futures = [pool.submit(remote.add, number) for number in range(40)]
    assert [future.result(TIMEOUT) for future in futures] == list(range(1, 41))
    eventually(lambda: not pool._link._shipments)
    assert "max_workers=" in caplog.text
