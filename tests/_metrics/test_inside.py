"""What the faces of the metrics share: names, samples of how long tasks take, and what pools that end leave."""

from __future__ import annotations

import gc
import re

import pytest
from support.common import FORK, TIMEOUT, Boom, Gate, eventually, fail, needs_fork, output_of, run_script, wait_for_idle
from support.metrics import HISTOGRAMS, METRICS, MOST, Source, add, in_prometheus, one_in, source
from support.pages import ROOT
from support.seams import engine_of

from ebbpool import AdaptiveExecutor


def test_shares_to_be_measured() -> None:
    for share, every in {1: 1, 0.5: 2, 1 / 64: 64, 0.03: 33, None: 0}.items():
        assert one_in(share) == every


def test_of_a_flood_so_many_samples_are_kept() -> None:
    with AdaptiveExecutor(1, "flood") as pool:
        source = Source(1)
        for future in [pool.submit(int) for _ in range(MOST + 10)]:
            future.result(TIMEOUT)
        wait_for_idle(pool)
        assert [label for label, _ in source.take()].count("flood") == MOST
        pool.submit(int).result(TIMEOUT)
        wait_for_idle(pool)
        assert [label for label, _ in source.take()].count("flood") == 1


def test_a_worker_never_waits_for_a_reader() -> None:
    with AdaptiveExecutor(1, "free") as pool:
        reader = Source(1)
        with source._turn:
            assert pool.submit(int).result(TIMEOUT) == 0
            wait_for_idle(pool)
        assert [label for label, _ in reader.take()].count("free") == 1


def test_names_keep_the_rules_of_promtool() -> None:
    names = [in_prometheus(name, "s") for name in HISTOGRAMS]
    for metric in METRICS:
        assert metric.help
        names.append(metric.prometheus_name + "_total" * (metric.kind == "counter"))
        assert names[-1].removesuffix("_total").endswith("_seconds") == (metric.unit == "s")
    assert len(set(names)) == len(names)
    for name in names:
        assert re.fullmatch("ebbpool(_[a-z]+)+", name), "lower case, and no colon"
        assert not name.endswith(("_count", "_sum", "_bucket")), "that is what the parts of a histogram are called"


def test_the_page_has_every_metric() -> None:
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    told = set()
    for cell in re.findall(r"^\| (`ebbpool\..*?) \| `ebbpool_", page, flags=re.MULTILINE):
        first, *others = re.findall(r"`(.*?)`", cell)
        told.update([first, *(first.rpartition(".")[0] + other for other in others)])
    assert told == {*HISTOGRAMS, *(metric.name for metric in METRICS)}


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("anyio", "anyio"),
        ("dask", "distributed"),
        ("opentelemetry", "opentelemetry-api"),
        ("prometheus", "prometheus_client"),
    ],
)
def test_a_module_that_needs_another_package_says_how_to_get_it(module: str, package: str) -> None:
    done = run_script(f"import sys; sys.modules[{package.partition('-')[0]!r}] = None; import ebbpool.{module}")
    assert f"ImportError: ebbpool.{module} needs {package}: python -m pip install {package} (" in done.stderr


@needs_fork
def test_metrics_are_read_in_a_forked_child() -> None:
    pytest.importorskip("prometheus_client")
    script = """
        from prometheus_client import CollectorRegistry, generate_latest
        from support.metrics import source
        from ebbpool.prometheus import PoolCollector
        registry = CollectorRegistry()
        registry.register(PoolCollector(sample=1))
        held, forked = threading.Event(), threading.Event()
        def hold():
            with source._turn:
                held.set()
                forked.wait()
        threading.Thread(target=hold).start()
        held.wait()
        def check():
            with AdaptiveExecutor(thread_name_prefix="child") as pool:
                assert b'ebbpool_threads{pool="child"' in generate_latest(registry)
                for _ in range(2000):
                    pool.submit(int).result()
                assert b'ebbpool_task_run_duration_seconds_count{pool="child"} 2000.0' in generate_latest(registry)
        print(in_child(check))
        forked.set()
    """
    assert output_of(script, FORK) == ["0"]


DONE = ("ebbpool.task.submissions", "", "")


def test_the_last_tasks_of_a_pool_are_shown_once_more() -> None:
    source = Source(1, last=True)
    for _ in range(2):
        pool = AdaptiveExecutor(thread_name_prefix="brief")
        assert source.read()["brief"][DONE] == 0
        for _ in range(10):
            pool.submit(int)
        pool.shutdown()
        found = source.read()["brief"]
        assert found[DONE] == 10
        assert found["ebbpool.thread.exits", "", ""] == found["ebbpool.thread.starts", "", ""]
        assert [pool for pool, _ in source.take()] == 10 * ["brief"]
        assert "brief" not in source.read()


def test_counters_of_a_name_go_on_if_another_pool_has_it_by_the_next_reading() -> None:
    source = Source()
    for ended in range(1, 4):
        with AdaptiveExecutor(thread_name_prefix="heir") as pool:
            pool.submit(int).result(TIMEOUT)
            assert source.read()["heir"][DONE] == source.read()["heir"][DONE] == ended
            assert source.read()["heir"]["ebbpool.thread.limit", "", ""] == pool.stats().max_workers
    assert "heir" not in source.read()
    with AdaptiveExecutor(thread_name_prefix="heir"):
        assert source.read()["heir"][DONE] == 0


def test_of_pools_of_one_name_levels_are_added_up_and_the_longest_duration_counts() -> None:
    queued, waited = ("ebbpool.queue.length", "", ""), ("ebbpool.queue.oldest_wait", "", "")
    total = {queued: 1.0, waited: 3.0}
    add(total, {queued: 2.0, waited: 5.0})
    add(total, {queued: 4.0, waited: 2.0})
    assert total == {queued: 7.0, waited: 5.0}


def test_a_forgotten_executor_is_not_kept_and_its_tasks_are_counted() -> None:
    source = Source(last=True)
    pool = AdaptiveExecutor(thread_name_prefix="forgotten")
    with Gate() as gate:
        gate.hold(pool)
        source.read()
        engine = engine_of(pool)
        del pool

        def is_closed() -> bool:
            gc.collect()
            return bool(engine.closed)

        eventually(is_closed, "the executor is collected")
        assert source.read()["forgotten"]["ebbpool.task.completions", "", "completed"] == 0
    eventually(lambda: engine.staff.headcount == 0)
    assert source.read()["forgotten"]["ebbpool.task.completions", "", "completed"] == 1


@pytest.mark.parametrize("known", [True, False])
def test_a_read_that_fails_loses_nothing_of_a_pool_that_ends_meanwhile(known: bool) -> None:
    with AdaptiveExecutor(1, "odd") as odd:
        source = Source(last=True)
        pool = AdaptiveExecutor(1, "ends")
        pool.submit(int).result(TIMEOUT)
        if known:
            source.read()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(odd, "stats", fail)
            with pytest.raises(Boom):
                source.read()
            pool.submit(int).result(TIMEOUT)
            pool.shutdown()
            with pytest.raises(Boom):
                source.read()
        ended = source.read()["ends"]
        assert sum(ended[key] for key in ended if key[0] == "ebbpool.task.completions") == 2
