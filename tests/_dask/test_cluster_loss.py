"""Real clusters of two processes that lose whatever they can: each call has an end, and none is made twice.

``EBBPOOL_CLUSTER_PROOF=1`` makes all of it longer: ten workers are killed in a row, and 10 GB go to and fro.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster
from support import cluster as remote
from support.common import Background, eventually, python
from support.dask import LIMIT, Held, await_two, kill, making, packing
from support.server import reserved_port

from ebbpool.dask import ClusterExecutor

LONG = os.environ.get("EBBPOOL_CLUSTER_PROOF", "") not in ("", "0")
KILLS = 10 if LONG else 2
TESTS = str(Path(__file__).parent.parent)
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])}
"""That of a process that can import `support`."""

pytestmark = [
    pytest.mark.timeout(900 if LONG else 180),
    pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="workers are killed with SIGKILL"),
]


class Storm:
    """Threads that submit calls and cancel some, each of which leaves a line in a file when it is made."""

    def __init__(self, pool: ClusterExecutor, path: Path, threads: int = 3) -> None:
        self.futures: dict[str, Future[int]] = {}
        self._executor = pool
        self._path = path
        self.over = threading.Event()
        self._threads = [Background(partial(self._submit, number)) for number in range(threads)]

    def _submit(self, number: int) -> None:
        chance = random.Random(number)
        count = 0
        # Refused when the executor is shut down, or its client closed; what was accepted before has an end.
        with suppress(RuntimeError):
            while not self.over.is_set():
                names = [f"{number}-{count + more}" for more in range(chance.randrange(1, 40))]
                count += len(names)
                for name in names:
                    large = [bytes(packing.LARGE + 1)] if chance.random() < 0.02 else []
                    self.futures[name] = self._executor.submit(remote.note, str(self._path), name, *large)
                for name in chance.sample(names, len(names) // 3):
                    self.futures[name].cancel()
                if chance.random() < 0.7:
                    wait([self.futures[name] for name in names], LIMIT)

    def grow(self, more: int) -> None:
        """Wait until so many more calls have been submitted."""
        wanted = len(self.futures) + more
        eventually(lambda: len(self.futures) >= wanted, "calls are submitted", 600.0 if LONG else LIMIT)

    def ended(self) -> Counter[str]:
        """End it; see to it that each call has one fate; return how many had which."""
        self.over.set()
        for thread in self._threads:
            assert thread.over.wait(LIMIT)
            thread.join()
        assert not wait(self.futures.values(), LIMIT).not_done
        made = Counter(self._path.read_text().split()) if self._path.exists() else Counter()
        assert set(made.values()) <= {1}, f"made twice: {[name for name, times in made.items() if times > 1]}"
        fates: Counter[str] = Counter()
        for name, future in self.futures.items():
            if future.cancelled():
                assert name not in made
                fates["cancelled"] += 1
            elif isinstance(error := future.exception(0), BrokenExecutor):
                assert "note" in str(error)
                fates["lost"] += 1
            else:
                assert error is None and made[name] == 1
                fates["made"] += 1
        return fates


@pytest.mark.parametrize(("mapped", "times"), [(False, "once"), (True, "once"), (False, "2 times")])
def test_a_call_whose_worker_dies_ends_and_is_made_again_only_if_it_may(
    two_workers: Client, tmp_path: Path, mapped: bool, times: str
) -> None:
    path = tmp_path / "ran"
    named = rf"support\.cluster\.die was lost with the worker tcp://.*tried {times}"
    with ClusterExecutor(two_workers, window=1.0, rerun=times != "once") as pool:
        with pytest.raises(BrokenExecutor, match=named):
            if mapped:
                list(pool.map(remote.die, [str(path)]))
            else:
                pool.submit(remote.die, str(path)).result(LIMIT)
        assert pool.submit(remote.add, 1).result(LIMIT) == 2
    assert path.read_text() == "run\n" * (1 if times == "once" else 2)


def test_a_call_whose_result_is_lost_is_not_made_again(two_workers: Client, tmp_path: Path) -> None:
    path = tmp_path / "ran"
    two_workers.register_plugin(making.AtMostOnce())
    call = making.dumps((remote.note, (str(path),), {}))
    key = f"{making.ONCE}-test-1"
    future = two_workers.submit(making.perform, call, key=key, pure=False)
    found = two_workers.who_has([future])
    while not found.get(future.key):
        future.exception(LIMIT)
        found = two_workers.who_has([future])
    (holder,) = found[future.key]
    pids = two_workers.run(os.getpid)
    os.kill(pids[holder], signal.SIGKILL)
    await_two(two_workers, holder)
    # The death may be noticed only as the result is asked for; either way the call is not made again.
    with pytest.raises(making.Lost, match=holder):
        future.result(LIMIT)
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
        with pytest.raises(BrokenExecutor, match=r"die was lost .* tried once"):
            pool.submit(remote.die, str(path)).result(LIMIT)
        assert pool.submit(remote.add, 1).result(LIMIT) == 2
    assert path.read_text() == "run\n"


@pytest.mark.parametrize("with_own_loop", [False, True])
def test_calls_end_when_their_client_is_closed(cluster: Any, held: Held, with_own_loop: bool) -> None:
    own = Client(cluster.scheduler_address if with_own_loop else cluster, set_as_default=False)
    pool = ClusterExecutor(own)
    link = pool._link
    futures = [pool.submit(remote.wait_at, held.name) for _ in range(20)]
    eventually(lambda: len(link._parcels) == 4)
    own.close()
    for future in futures:
        with pytest.raises(BrokenExecutor, match=r"support\.cluster\.wait_at .*[Cc]lient"):
            future.result(LIMIT)
    pool.shutdown(timeout=LIMIT)


def test_workers_are_killed_in_the_middle_of_a_storm(two_workers: Client, tmp_path: Path) -> None:
    with ClusterExecutor(two_workers) as pool:
        storm = Storm(pool, tmp_path / "made")
        for _ in range(KILLS):
            storm.grow(200)
            kill(two_workers, random.choice(list(two_workers.nthreads())))
        fates = storm.ended()
    assert fates["made"] > 100


def test_calls_of_a_worker_that_is_retired_have_an_end() -> None:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
        ClusterExecutor(client, window=1.0) as pool,
        Held(client) as held,
    ):
        futures = [pool.submit(remote.wait_at, held.name) for _ in range(2)]
        eventually(lambda: sum(map(len, client.processing().values())) == 2)
        address = next(iter(client.nthreads()))
        client.retire_workers([address])
        lost = wait(futures, LIMIT, FIRST_COMPLETED).done.pop()
        with pytest.raises(BrokenExecutor, match=f"wait_at was lost with the worker {address}"):
            lost.result(0)
        held.open()
        (other,) = set(futures) - {lost}
        assert other.result(LIMIT) == held.name


def test_a_large_argument_outlives_a_worker_that_has_it(two_workers: Client) -> None:
    large = os.urandom(2 * packing.LARGE)

    def holders() -> list[str]:
        places = two_workers.who_has()
        return [holder for key in places if key.startswith("ebbpool-part-") for holder in places[key]]

    def expect_long_calls(dask_scheduler: Any) -> None:
        # After short ones the scheduler has a call wait for the worker that has its argument.
        for prefix in dask_scheduler.task_prefixes.values():
            prefix.duration_average = LIMIT

    two_workers.run_on_scheduler(expect_long_calls)
    with ClusterExecutor(two_workers, window=1.0) as pool, Held(two_workers) as held:
        futures = [pool.submit(remote.wait_at, held.name, large) for _ in range(2)]
        eventually(lambda: len(holders()) == 2)
        kill(two_workers, holders()[0])
        lost = wait(futures, LIMIT, FIRST_COMPLETED).done.pop()
        with pytest.raises(BrokenExecutor, match=r"wait_at was lost with the worker "):
            lost.result(0)
        assert pool.submit(remote.size_of, large).result(LIMIT) == 2 * packing.LARGE
        held.open()
        (other,) = set(futures) - {lost}
        assert other.result(LIMIT) == held.name


def test_the_scheduler_is_killed(tmp_path: Path) -> None:
    script = """
from distributed import LocalCluster
with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster:
    print(cluster.scheduler_address, flush=True)
    input()
"""
    command = [sys.executable, "-c", script]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert process.stdin is not None and process.stdout is not None
    with process, process.stdin, process.stdout:
        pool = ClusterExecutor(process.stdout.readline().strip(), timeout=5.0)
        storm = Storm(pool, tmp_path / "made")
        storm.grow(200)
        waiting = [pool.submit(remote.wait_at, "for-ever") for _ in range(10)]
        process.kill()
        for future in waiting:
            with pytest.raises(BrokenExecutor, match=r"wait_at .*(client|worker)"):
                future.result(LIMIT)
        storm.over.set()
        pool.shutdown(timeout=LIMIT)
        storm.ended()


@pytest.mark.parametrize("rerun", [False, True])
def test_the_connection_is_cut_and_mended(two: Any, two_workers: Client, tmp_path: Path, rerun: bool) -> None:
    path = tmp_path / "made"
    with (
        reserved_port() as port,
        remote.Proxy(two.scheduler_address, port) as proxy,
        ClusterExecutor(proxy.address, window=1.0, rerun=rerun, timeout=LIMIT) as pool,
        Held(two_workers) as held,
    ):
        running = [pool.submit(remote.wait_at, held.name) for _ in range(2)]
        held.await_begun()
        eventually(lambda: len(pool._link._parcels) == 2)
        waiting = [pool.submit(remote.note, str(path), str(number)) for number in range(50)]
        proxy.cut()
        for future in running:
            with pytest.raises(BrokenExecutor, match=r"wait_at was given up by the cluster's client: .*connection"):
                future.result(LIMIT)
        waiting.append(pool.submit(remote.note, str(path), "cut"))
        held.open()
        if rerun:
            # What was accepted counts after a shutdown, too.
            pool.shutdown(wait=False)
        proxy.mend()
        # What had not been handed over is made once there is a connection again, and so is what comes then.
        if not rerun:
            waiting.append(pool.submit(remote.note, str(path), "mended"))
        assert not wait(waiting, LIMIT).not_done
        assert {future.exception(0) for future in waiting} == {None}
        expected = [*map(str, range(50)), "cut", *["mended"] * (not rerun)]
        assert sorted(path.read_text().split()) == sorted(expected)


def test_a_connection_that_hangs_for_a_while_loses_nothing_and_holds_up_no_shutdown(two: Any, tmp_path: Path) -> None:
    with remote.Proxy(two.scheduler_address) as proxy:
        pool = ClusterExecutor(proxy.address)
        storm = Storm(pool, tmp_path / "made")
        storm.grow(100)
        proxy.flows.clear()
        with pytest.raises(TimeoutError, match=r"note, sent .* ago, where is not known, because the scheduler"):
            pool.shutdown(timeout=1.0)
        proxy.flows.set()
        assert storm.ended()["lost"] == 0
        pool.shutdown()


def test_calls_end_where_the_connection_does_not_come_back(two: Any) -> None:
    with remote.Proxy(two.scheduler_address) as proxy:
        pool = ClusterExecutor(proxy.address, timeout=5.0)
        assert pool.submit(remote.add, 1).result(LIMIT) == 2
        proxy.cut()
        eventually(lambda: pool._link.client.status != "running")
        future = pool.submit(remote.add, 1)
        with pytest.raises(BrokenExecutor, match=r"add .*the client is closed"):
            future.result(LIMIT)
        with pytest.raises(RuntimeError, match="is closed"):
            pool.submit(remote.add, 1)
        pool.shutdown(timeout=LIMIT)


def test_more_than_fits_goes_to_and_fro_piece_by_piece() -> None:
    """The memory of a process of its own is measured, and that of its workers."""
    pieces, size = (100, 100 << 20) if LONG else (20, 8 << 20)
    script = f"""
from collections import deque
from distributed import Client, LocalCluster
from ebbpool.dask import ClusterExecutor
from support import cluster as remote
block = bytes({size} - 8)
with (
    LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
    Client(cluster, set_as_default=False) as client,
    ClusterExecutor(client, window=1.0, max_queue=1) as pool,
):
    before = remote.peak(), max(client.run(remote.peak).values())
    waiting = deque()
    for number in [*range({pieces}), None, None, None]:
        if len(waiting) > 2 or number is None:
            then, future = waiting.popleft()
            result = future.result()
            assert len(result) == {size} and result[:8] == then.to_bytes(8, "big")
            del result, future
        if number is not None:
            waiting.append((number, pool.submit(bytearray, number.to_bytes(8, "big") + block)))
    print(remote.peak() - before[0], max(client.run(remote.peak).values()) - before[1])
"""
    told = python("-W", "ignore", "-c", script, timeout=800.0, **ENVIRONMENT)
    assert told.returncode == 0, told.stderr
    here, there = map(float, told.stdout.split())
    # Of each piece that is on its way there are some copies here, where the scheduler is, too, and some there.
    assert here < 20 * size + (256 << 20) and there < 10 * size + (256 << 20)
    assert not LONG or here + 2 * there < 6 << 30
