"""A pool that spills to a cluster of two processes: what goes, what is lost, what is never made twice."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from support import cluster as remote
from support.common import Gate, eventually
from support.dask import LIMIT, Held

from ebbpool import AdaptiveExecutor, spillable
from ebbpool.dask import ClusterExecutor

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="workers are killed with SIGKILL"),
]


@contextmanager
def busy_pool(client: Client, **options: Any) -> Iterator[tuple[AdaptiveExecutor, Gate]]:
    """A pool that spills to a cluster at once, since its only worker waits at a gate."""
    with (
        ClusterExecutor(client, **options) as there,
        AdaptiveExecutor(1, spill=there, spill_after=0) as pool,
        Gate() as gate,
    ):
        gate.hold(pool)
        yield pool, gate


def test_marked_tasks_run_in_the_workers_processes(two_workers: Client, tmp_path: Path) -> None:
    path = tmp_path / "ran"
    with busy_pool(two_workers) as (pool, gate):
        marked = [pool.submit(spillable(remote.note), str(path), f"{number}") for number in range(20)]
        plain = pool.submit(remote.note, str(path), "plain")
        assert os.getpid() not in {future.result(LIMIT) for future in marked}
        gate.open()
        assert plain.result(LIMIT) == os.getpid()
        # A task is counted after its future is done.
        assert pool.wait_idle(LIMIT)
        stats = pool.stats()
        assert (stats.spilled, stats.spill_returned, stats.away) == (20, 0, 0)
    assert sorted(path.read_text().split()) == sorted([*map(str, range(20)), "plain"])


def test_a_worker_that_dies_gives_back_what_it_had(two_workers: Client, tmp_path: Path) -> None:
    path = tmp_path / "ran"
    with busy_pool(two_workers, window=1.0) as (pool, gate):
        future = pool.submit(spillable(remote.die_elsewhere), str(path), os.getpid())
        eventually(lambda: pool.stats().spill_returned == 1, "it comes back", LIMIT)
        assert not future.done()
        gate.open()
        assert future.result(LIMIT) == os.getpid()
        # The cluster is used again.
        second = Gate()
        second.hold(pool)
        two_workers.wait_for_workers(2, timeout=LIMIT)
        other = pool.submit(spillable(remote.note), str(path))
        assert other.result(LIMIT) != os.getpid()
        second.open()
    # Once there, and once here.
    assert len(path.read_text().split()) == 3


def test_every_task_of_a_storm_ends_while_workers_are_killed(two_workers: Client, tmp_path: Path) -> None:
    path = tmp_path / "ran"
    ends = threading.Event()

    def kill_some() -> None:
        for _ in range(3):
            two_workers.wait_for_workers(2, timeout=LIMIT)
            os.kill(next(iter(two_workers.run(os.getpid).values())), signal.SIGKILL)
            if ends.wait(1.0):
                return

    with ClusterExecutor(two_workers) as there, AdaptiveExecutor(2, spill=there, spill_after=0.01) as pool:
        killer = threading.Thread(target=kill_some)
        killer.start()
        try:
            marked = [pool.submit(spillable(remote.busy), str(path), f"m{number}") for number in range(150)]
            plain = [pool.submit(remote.busy, str(path), f"p{number}") for number in range(30)]
            for future in [*marked, *plain]:
                future.result(LIMIT)
        finally:
            ends.set()
            killer.join()
        assert pool.wait_idle(LIMIT)
        stats = pool.stats()
        assert stats.completed == 180
        assert stats.spilled > 0
    ran = Counter(path.read_text().split())
    assert {f"m{number}" for number in range(150)} <= ran.keys()
    # A marked task ran a second time only if it came back; the others ran once.
    assert [ran[f"p{number}"] for number in range(30)] == [1] * 30
    assert sum(count - 1 for count in ran.values()) <= stats.spill_returned


def test_closing_the_client_loses_nothing(cluster: Any, held: Held) -> None:
    own = Client(cluster, set_as_default=False)
    with busy_pool(own) as (pool, gate):
        future = pool.submit(spillable(remote.here_or_wait), os.getpid(), held.name)
        eventually(lambda: pool.stats().away == 1)
        own.close()
        eventually(lambda: pool.stats().spill_returned == 1)
        held.open()
        gate.open()
        assert future.result(LIMIT) == held.name


def test_a_lambda_goes_and_what_cannot_be_pickled_stays(two_workers: Client, caplog: pytest.LogCaptureFixture) -> None:
    with busy_pool(two_workers) as (pool, gate):
        assert pool.submit(spillable(lambda: os.getpid())).result(LIMIT) != os.getpid()
        with pytest.raises(BrokenExecutor, match="of the task's own"):
            pool.submit(spillable(remote.fail), BrokenExecutor, "of the task's own").result(LIMIT)
        assert pool.stats().spill_returned == 0
        lock = threading.Lock()
        future = pool.submit(spillable(remote.given), lock)
        eventually(lambda: pool.stats().spill_returned == 1)
        gate.open()
        assert future.result(LIMIT) == ((lock,), {})
    assert "given stays in pool" in caplog.text
    assert "argument 0" in caplog.text


def test_context_variables_go_as_the_cluster_sends_them(two_workers: Client) -> None:
    request = spillable(remote.request)

    async def main() -> None:
        remote.REQUEST.set("mine")
        loop = asyncio.get_running_loop()
        assert await pool.run(request) == "mine"
        loop.set_default_executor(pool)
        assert await asyncio.to_thread(request) == "mine"
        # `run_in_executor` of a plain loop carries no context, here or there.
        assert await loop.run_in_executor(pool, partial(request)) == "none"
        assert pool.stats().spilled == 3
        gate.open()

    with busy_pool(two_workers, context_vars=["support.cluster:REQUEST"]) as (pool, gate):
        asyncio.run(main())
