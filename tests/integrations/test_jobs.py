"""The pages on jobs, agents and numbers: the work of their examples is done by threads of the pool."""

from __future__ import annotations

from support.pages import use_example


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


def test_langchain() -> None:
    printed = use_example("langchain", "print(pool.stats().completed, pool.stats().workers)")
    assert printed[0].startswith("['PAGE 0', 'PAGE 1', ")
    assert printed[1:] == ["80 0"]


def test_numpy() -> None:
    printed = use_example(
        "numpy",
        """
import threading
from threadpoolctl import threadpool_info

def limits():
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

with threadpool_limits(limits=1, user_api="blas"), AdaptiveExecutor(thread_name_prefix="numbers") as pool:
    # A result is there before its worker is free again, and the task counted.
    print(pool.submit(limits).result(), pool.wait_idle(10))
    print(pool.submit(product, 100).result(), pool.wait_idle(10), pool.stats().completed)
    print([thread.name for thread in threading.enumerate() if thread.name.startswith('numbers')])
""",
    )
    assert printed == ["2000.0", "{1} True", "25.0 True 2", "['numbers_0']"]
