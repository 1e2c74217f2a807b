"""The pages on jobs, agents and numbers: the work of their examples is done by threads of the pool."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.common import output_of
from support.pages import ROOT, blocks_of, skip_without_packages, use_example


def test_pydantic_ai() -> None:
    printed = use_example(
        "pydantic-ai",
        """
import threading

answered = pool.stats().completed
pool = AdaptiveExecutor(thread_name_prefix="again")
names = []

def remember() -> str:
    names.append(threading.current_thread().name)
    return "remembered"

other = Agent(TestModel(), tools=[remember])

async def again():
    async with pool:
        with Agent.using_thread_executor(pool):
            await other.run("Go on.")

asyncio.run(again())
print(answered, names, pool.stats().completed)
""",
    )
    assert printed == ['{"weather":"sunny","traffic":"calm"}', "2 ['again_0'] 1"]


def test_apscheduler() -> None:
    printed = use_example(
        "apscheduler",
        """
import threading

pool = AdaptiveExecutor(thread_name_prefix="jobs")
lane = pool.lane("reports", limit=2)
scheduler = BackgroundScheduler(executors={"default": PoolExecutor(pool), "reports": PoolExecutor(lane)})
names = []
done = threading.Semaphore(0)

def job():
    names.append(threading.current_thread().name.partition("_")[0])
    done.release()

scheduler.add_job(job)
scheduler.add_job(job, executor="reports")
scheduler.start()
print(done.acquire(timeout=10), done.acquire(timeout=10), names)
scheduler.shutdown()
print(pool.stats().completed, lane.stats().completed, pool.stats().workers)
""",
    )
    assert printed == ["True True ['jobs', 'jobs']", "2 1 0"]


def test_celery() -> None:
    printed = use_example(
        "celery",
        """
import logging
import threading
from celery import Celery
from celery.contrib.testing.worker import start_worker

app = Celery("example", broker="memory://", backend="cache+memory://")

@app.task
def work():
    return threading.current_thread().name

with start_worker(app, pool=TaskPool, concurrency=8, perform_ping_check=False, loglevel=logging.ERROR) as worker:
    print(work.delay().get(timeout=20))
    print(worker.pool.executor.stats().submitted, worker.pool.info["max-concurrency"], worker.pool.info["threads"])
""",
    )
    assert printed == ["celery_0", "1 8 1"]


def test_celery_finds_the_class_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = blocks_of(ROOT / "docs/integrations/celery.md")[0]
    (tmp_path / "pools.py").write_text(example, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CELERY_CUSTOM_WORKER_POOL", "pools:TaskPool")
    script = """
    from celery.concurrency import get_implementation

    pool = get_implementation("custom")(100)
    print(type(pool).__module__, type(pool.executor).__name__, pool.executor._max_workers)
    """
    skip_without_packages(example)
    assert output_of(script) == ["pools AdaptiveExecutor 100"]


def test_langchain() -> None:
    printed = use_example("langchain", "print(pool.stats().completed, pool.stats().workers)")
    assert printed[0].startswith("['PAGE 0', 'PAGE 1', ")
    assert printed[1:] == ["80 0"]


def test_numpy() -> None:
    printed = use_example(
        "numpy",
        """
from threadpoolctl import threadpool_info

def limits():
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

with threadpool_limits(limits=1, user_api="blas"), AdaptiveExecutor(thread_name_prefix="numbers") as pool:
    # A result is there before its worker is free again, and the task counted.
    print(pool.submit(limits).result(), pool.wait_idle(10))
    print(pool.submit(product, 100).result(), pool.wait_idle(10), pool.stats().completed)
    print([thread.name for thread in pool._threads])
""",
    )
    assert printed == ["2000.0", "{1} True", "25.0 True 2", "['numbers_0']"]
