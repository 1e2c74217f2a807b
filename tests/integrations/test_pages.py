"""The pages on web frameworks, jobs, agents and numbers: the work of their examples is done by threads of the pool."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.common import output_of
from support.pages import skip_without_packages, use_example

THREADS = """
import logging
import threading

logging.getLogger("httpx").setLevel(logging.WARNING)

def threads(prefix):
    # The thread that waits for a pool's end tells the event loop that it has come, and then ends itself.
    names = {thread.name for thread in threading.enumerate() if not thread.name.endswith("_shutdown")}
    return sorted({name.partition("_")[0] for name in names if name.startswith(prefix)})
"""

HOLD = """
def held(pool):
    # From now on no call gets a thread.
    pool.resize(max_workers=1, max_wait=0.02)
    begun, gate = threading.Event(), threading.Event()
    pool.within(600.0).submit(lambda: (begun.set(), gate.wait(20)))
    assert begun.wait(20)
    return gate

def told(answer):
    return answer.status_code, answer.headers["Retry-After"]
"""
"""Keeps all threads of a pool, and prints what a client is told then."""


def test_fastapi() -> None:
    printed = use_example(
        "fastapi",
        THREADS
        + """
from starlette.testclient import TestClient

submitted = 0
for _ in range(2):
    with TestClient(app) as client:
        print(client.get("/report").json())
        print(threads("web"), threads("AnyIO worker"))
        metrics = client.get("/metrics").text
        (pool,) = ebbpool.pools()
        # The counter of a name goes on where another pool takes it over.
        submitted += pool.stats().submitted
        print(f'ebbpool_task_submissions_total{{pool="web"}} {submitted:.1f}' in metrics)
    print(threads("web"), pool.stats().workers)
    del pool
""",
    )
    assert printed == ["{'status': 'done'}", "['web'] []", "True", "[] 0"] * 2


def test_fastapi_hears_of_errors_while_it_watches_its_clients() -> None:
    printed = use_example(
        "fastapi",
        """
import ebbpool.anyio
from starlette.testclient import TestClient

@app.post("/sold-out")
def sold_out(order: dict[str, int]):
    raise HTTPException(410, f"no {order['what']} left")

with ebbpool.anyio.install(), TestClient(app) as client:
    answer = client.post("/sold-out", json={"what": 7})
    print(answer.status_code, answer.json())
    print(client.get("/sum").json())
""",
        1,
    )
    assert printed == ["410 {'detail': 'no 7 left'}", "{'sum': 49999995000000}"]


def test_starlette() -> None:
    printed = use_example(
        "frameworks#Starlette",
        THREADS
        + """
from starlette.testclient import TestClient

with TestClient(app) as client:
    print(client.get("/report").json())
    print(client.get("/power").json()["answer"] == 3**100)
    print(threads("web"), threads("AnyIO worker"))
print(threads("web"))
""",
    )
    assert printed == ["{'status': 'done'}", "True", "['web'] []", "[]"]


def test_litestar() -> None:
    printed = use_example(
        "frameworks#Litestar",
        THREADS
        + """
from litestar.testing import TestClient

with TestClient(app) as client:
    print(client.get("/report").json())
    print(threads("web"), threads("asyncio_"), pool.stats().submitted)
print(threads("web"))
""",
    )
    assert printed == ["{'status': 'done'}", "['web'] [] 1", "[]"]


def test_django() -> None:
    printed = use_example(
        "django",
        THREADS
        + """
from django.test import AsyncClient

async def main():
    return await AsyncClient().get("/report")

print(asyncio.run(main()).json())
print(threads("web"), pool.stats().submitted, threads("asyncio_"))
""",
    )
    assert printed == ["{'parts': ['stock: done', 'prices: done', 'reviews: done']}", "['web'] 3 []"]


def test_django_closes_the_connections_of_threads_that_leave(tmp_path: Path) -> None:
    printed = use_example(
        "django",
        f"FILE = {str(tmp_path / 'data')!r}"
        """
from django.db.backends.sqlite3.base import DatabaseWrapper

settings.DATABASES["default"] = {"ENGINE": "django.db.backends.sqlite3", "NAME": FILE, "CONN_MAX_AGE": None}
closed = []
close = DatabaseWrapper._close
DatabaseWrapper._close = lambda self: (closed.append(self.alias), close(self))

def query():
    with connections["default"].cursor() as cursor:
        return cursor.execute("select 1").fetchone()

print(asyncio.run(in_pool(query)()), closed)
pool.shutdown()
print(closed)
""",
    )
    assert printed == ["(1,) []", "['default']"]


def test_flask() -> None:
    printed = use_example(
        "frameworks#Flask",
        THREADS
        + """
import asyncio
from types import SimpleNamespace
import httpx

# What the example waits for is that all thirty requests have a thread.
meeting = threading.Barrier(30)
time = SimpleNamespace(sleep=lambda _: meeting.wait(20))

async def main():
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://example") as client:
        return await asyncio.gather(*(client.get("/report") for _ in range(30)))

print({answer.json()["status"] for answer in asyncio.run(main())})
stats = wsgi.executor.stats()
print(stats.submitted, stats.started, threads("web"), threads("WSGI"))
""",
    )
    assert printed == ["{'done'}", "30 30 ['web'] []"]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_aiohttp(loop: str) -> None:
    printed = use_example(
        "frameworks#aiohttp",
        THREADS
        + f"import {loop}\n"
        + """
import asyncio
from ebbpool.aio import new_uvloop
from pathlib import Path
from tempfile import TemporaryDirectory
from aiohttp.test_utils import TestClient, TestServer

async def main():
    async with TestClient(TestServer(app)) as client:
        print(await (await client.get("/report")).json())
        print(app[POOL].stats().submitted)
        with TemporaryDirectory(dir=".") as folder:
            (Path(folder) / "a file").write_text("something to read" * 100_000)
            print(len(await (await client.get(f"/files/{Path(folder).name}/a file")).read()))
        print(threads("web"), {type(t).__module__.partition(".")[0] for t in threading.enumerate() if LOOP in t.name})
    print(threads("web"))

with asyncio.Runner(loop_factory=new_event_loop if LOOP == "asyncio" else new_uvloop) as runner:
    runner.run(main())
""".replace("LOOP", repr(loop)),
    )
    assert printed == ["{'name': 'report'}", "1", "1700000", "['web'] {'ebbpool'}", "[]"]


@pytest.mark.parametrize("page", ["fastapi", "frameworks#Starlette", "frameworks#Litestar"])
def test_a_client_is_told_to_come_again(page: str) -> None:
    testing = "litestar.testing" if "Litestar" in page else "starlette.testclient"
    printed = use_example(
        page,
        THREADS
        + HOLD
        + f"from {testing} import TestClient\n"
        + """
import ebbpool

with TestClient(app) as client:
    (pool,) = ebbpool.pools()
    gate = held(pool)
    print(told(client.get("/report")))
    gate.set()
""",
    )
    assert printed == ["(503, '1')"]


@pytest.mark.parametrize("page", ["django", "frameworks#Flask"])
def test_a_client_of_other_servers_is_told_to_come_again(page: str) -> None:
    printed = use_example(
        page,
        THREADS
        + HOLD
        + """
import asyncio

async def main():
    if "flask_app" not in globals():
        from django.test import AsyncClient
        return await AsyncClient().get("/report")
    import httpx
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://example") as client:
        return await client.get("/report")

gate = held(pool if "flask_app" not in globals() else wsgi.executor)
print(told(asyncio.run(main())))
gate.set()
""",
    )
    assert printed == ["(503, '1')"]


def test_fastapi_tells_the_thread_that_the_client_has_left() -> None:
    printed = use_example(
        "fastapi",
        """
import asyncio
import threading
import ebbpool.anyio

begun, told = threading.Event(), threading.Event()

@app.get("/work")
def work():
    with ebbpool.on_cancel(told.set):
        begun.set()
        print(told.wait(20))
    print(ebbpool.cancelled())

async def main():
    messages = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive():
        if messages:
            return messages.pop()
        while not begun.is_set():
            await asyncio.sleep(0.001)
        return {"type": "http.disconnect"}

    async def send(message):
        pass

    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
             "path": "/work", "raw_path": b"/work", "query_string": b"", "headers": [], "root_path": "",
             "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)}
    with ebbpool.anyio.install():
        await app(scope, receive, send)

asyncio.run(main())
""",
        1,
    )
    assert printed == ["True", "True"]


CONNECTIONS = """
import asyncio
import time
from collections.abc import Iterator
from typing import Annotated

import ebbpool.anyio
import httpx
from fastapi import Depends, FastAPI
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session, sessionmaker

engine = create_engine(
    URL, pool_size=5, max_overflow=10, pool_timeout=10, connect_args={"check_same_thread": False}
)
new_session = sessionmaker(engine)
app = FastAPI()

def get_db() -> Iterator[Session]:
    with new_session() as session:
        yield session

Database = Annotated[Session, Depends(get_db)]

def get_user(db: Database) -> int:
    # It takes a connection, which the session keeps until the end of the request.
    return db.execute(text("select 1")).scalar_one()

@app.get("/items")
def items(db: Database, user: Annotated[int, Depends(get_user)]) -> int:
    db.execute(text("select 2")).scalar_one()
    time.sleep(0.005)
    return user

async def main():
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://example", timeout=None) as client:
        answers = await asyncio.gather(*(client.get("/items") for _ in range(CLIENTS)))
    print(type(engine.pool).__name__, sum(answer.status_code == 200 for answer in answers))

with ebbpool.anyio.install():
    asyncio.run(main())
"""


@pytest.mark.parametrize("clients", [100, 300])
def test_requests_that_hold_a_connection_go_on(clients: int, tmp_path: Path) -> None:
    skip_without_packages(CONNECTIONS)
    url = f"sqlite:///{tmp_path / 'data.db'}"
    printed = output_of(f"URL = {url!r}\nCLIENTS = {clients}\n{CONNECTIONS}")
    assert printed == [f"QueuePool {clients}"]


def test_pydantic_ai() -> None:
    printed = use_example(
        "more#pydantic-ai",
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
        "more#APScheduler",
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
    printed = use_example("more#langchain-core", "print(pool.stats().completed, pool.stats().workers)")
    assert printed[0].startswith("['PAGE 0', 'PAGE 1', ")
    assert printed[1:] == ["80 0"]


def test_numpy() -> None:
    printed = use_example(
        "more#numpy",
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
