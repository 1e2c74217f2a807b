"""Libraries on the pool, as the pages of docs/integrations have it: the work of each is done by the pool's threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.pages import use_example

HELPERS = """
import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import ebbpool
from ebbpool import AdaptiveExecutor

logging.getLogger("httpx").setLevel(logging.WARNING)

def threads(prefix):
    # The thread that waits for a pool's end tells the event loop that it has come, and then ends itself.
    names = {thread.name for thread in threading.enumerate() if not thread.name.endswith("_shutdown")}
    return sorted({name.partition("_")[0] for name in names if name.startswith(prefix)})

def name():
    return threading.current_thread().name

def is_told_to_come_again(ask, pool):
    # No other call gets a thread.
    pool.resize(max_workers=1, max_wait=0.02)
    begun, gate = threading.Event(), threading.Event()
    pool.within(600.0).submit(lambda: (begun.set(), gate.wait(20)))
    assert begun.wait(20)
    answer = ask()
    gate.set()
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")

def gather(app, path, count):
    # Ask an ASGI app so many times at once.
    import httpx

    async def main():
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://example", timeout=None) as client:
            return await asyncio.gather(*(client.get(path) for _ in range(count)))

    return asyncio.run(main())
"""


def case(name: str, place: str, use: str, *printed: str, number: int = 0) -> Any:
    """Return a use of an example, or of the library alone; see `use_example`. What is printed begins like this."""
    return pytest.param(place, number, use, printed, id=name)


FASTAPI = case(
    "fastapi",
    "fastapi",
    """
from starlette.testclient import TestClient

submitted = 0
for _ in range(2):
    with TestClient(app) as client:
        assert client.get("/report").json() == {"status": "done"}
        assert (threads("web"), threads("AnyIO worker")) == (["web"], [])
        metrics = client.get("/metrics").text
        (pool,) = ebbpool.pools()
        # The counter of a name goes on where another pool takes it over.
        submitted += pool.stats().submitted
        assert f'ebbpool_task_submissions_total{{pool="web"}} {submitted:.1f}' in metrics
    assert (threads("web"), pool.stats().workers) == ([], 0)
    del pool
with TestClient(app) as client:
    is_told_to_come_again(lambda: client.get("/report"), *ebbpool.pools())
""",
)

FASTAPI_WATCHES = case(
    "fastapi hears of errors, and tells the thread that the client has left",
    "fastapi",
    """
import ebbpool.anyio
from starlette.testclient import TestClient

begun, told, heard = threading.Event(), threading.Event(), []

@app.post("/sold-out")
def sold_out(order: dict[str, int]):
    raise HTTPException(410, f"no {order['what']} left")

@app.get("/work")
def work():
    with ebbpool.on_cancel(told.set):
        begun.set()
        heard.append(told.wait(20))
    heard.append(ebbpool.cancelled())

async def leave():
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
    await app(scope, receive, send)

with ebbpool.anyio.install():
    with TestClient(app) as client:
        answer = client.post("/sold-out", json={"what": 7})
        assert (answer.status_code, answer.json()) == (410, {"detail": "no 7 left"})
        assert client.get("/sum").json() == {"sum": 49999995000000}
    asyncio.run(leave())
assert heard == [True, True]
""",
    number=1,
)

CONNECTIONS = """
import time
from collections.abc import Iterator
from typing import Annotated

import ebbpool.anyio
from fastapi import Depends, FastAPI
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session, sessionmaker

engine = create_engine(
    f"sqlite:///{FILE}", pool_size=5, max_overflow=10, pool_timeout=10, connect_args={"check_same_thread": False}
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

for clients in (100, 300):
    with ebbpool.anyio.install():
        assert {answer.status_code for answer in gather(app, "/items", clients)} == {200}
assert type(engine.pool).__name__ == "QueuePool"
"""

STARLETTE = """
from starlette.testclient import TestClient

with TestClient(app) as client:
    assert client.get("/report").json() == {"status": "done"}
    assert client.get("/power").json()["answer"] == 3**100
    assert (threads("web"), threads("AnyIO worker")) == (["web"], [])
    is_told_to_come_again(lambda: client.get("/report"), *ebbpool.pools())
assert threads("web") == []
"""

LITESTAR = """
from litestar.testing import TestClient

with TestClient(app) as client:
    assert client.get("/report").json() == {"status": "done"}
    assert (threads("web"), threads("asyncio_"), pool.stats().submitted) == (["web"], [], 1)
    is_told_to_come_again(lambda: client.get("/report"), pool)
assert threads("web") == []
"""

DJANGO = """
from django.db.backends.sqlite3.base import DatabaseWrapper
from django.test import AsyncClient

settings.DATABASES["default"] = {"ENGINE": "django.db.backends.sqlite3", "NAME": FILE, "CONN_MAX_AGE": None}
closed = []
close = DatabaseWrapper._close
DatabaseWrapper._close = lambda self: (closed.append(self.alias), close(self))

def get_report():
    async def main():
        return await AsyncClient().get("/report")

    return asyncio.run(main())

def query():
    with connections["default"].cursor() as cursor:
        return cursor.execute("select 1").fetchone()

assert get_report().json() == {"parts": ["stock: done", "prices: done", "reviews: done"]}
assert (threads("web"), pool.stats().submitted, threads("asyncio_")) == (["web"], 3, [])
assert (asyncio.run(in_pool(query)()), closed) == ((1,), [])
is_told_to_come_again(get_report, pool)
# Connections of threads that leave are closed.
pool.shutdown()
assert closed == ["default"]
"""

DJANGO_SESSIONS = """
import json
import sqlite3
import django
from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.db import connection, connections
from django.http import JsonResponse
from django.urls import path
from asgiref.testing import ApplicationCommunicator
import ebbpool.django

settings.configure(
    SECRET_KEY="for a test", ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], DEBUG=False, LOGGING_CONFIG=None,
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": FILE, "CONN_MAX_AGE": None}},
)
django.setup()
made = []

def query():
    with connection.cursor() as cursor:
        cursor.execute("select 1")
    if connection.connection not in made:
        made.append(connection.connection)
    return name()

def plain(request):
    return JsonResponse({"threads": [query()]})

async def view(request):
    # Two that could run beside each other, and must not: they share a connection.
    names = await asyncio.gather(*(sync_to_async(query)() for _ in range(2)))
    return JsonResponse({"threads": [*names, await sync_to_async(query)()]})

meeting = threading.Barrier(3)

def meets(request):
    meeting.wait(20)
    return plain(request)

urlpatterns = [path("plain", plain), path("view", view), path("meets", meets)]
pool = AdaptiveExecutor(1, "web", keep_alive=60, finalizer=connections.close_all)
app = ebbpool.django.asgi(get_asgi_application(), pool)

async def get(url):
    scope = {"type": "http", "method": "GET", "path": url, "headers": [], "query_string": b"", "http_version": "1.1"}
    client = ApplicationCommunicator(app, scope)
    await client.send_input({"type": "http.request", "body": b""})
    await client.receive_output(20)
    body = (await client.receive_output(20))["body"]
    await client.wait(20)
    return set(json.loads(body)["threads"])

async def main():
    for url in ("/plain", "/view") * 3:
        assert await get(url) == {"web_0"}
        # The session ends in its thread, just after the answer.
        assert await asyncio.get_running_loop().run_in_executor(None, pool.wait_idle, 20)
    assert (pool.stats().started, len(made)) == (1, 1)
    assert len(set.union(*await asyncio.gather(*(get("/meets") for _ in range(3))))) == 3

asyncio.run(main())
pool.shutdown()
for one in made:
    try:
        one.total_changes
    except sqlite3.ProgrammingError as error:
        assert "closed" in str(error)
    else:
        raise AssertionError
"""

FLASK = """
# What the example waits for is that all thirty requests have a thread.
meeting = threading.Barrier(30)
time = SimpleNamespace(sleep=lambda _: meeting.wait(20))

assert {answer.json()["status"] for answer in gather(app, "/report", 30)} == {"done"}
stats = wsgi.executor.stats()
assert (stats.submitted, stats.started, threads("web"), threads("WSGI")) == (30, 30, ["web"], [])
is_told_to_come_again(lambda: gather(app, "/report", 1)[0], wsgi.executor)
"""

AIOHTTP = """
from ebbpool.aio import new_uvloop
from pathlib import Path
from tempfile import TemporaryDirectory
from aiohttp.test_utils import TestClient, TestServer

async def main():
    async with TestClient(TestServer(app)) as client:
        assert await (await client.get("/report")).json() == {"name": "report"}
        assert app[POOL].stats().submitted == 1
        with TemporaryDirectory(dir=".") as folder:
            (Path(folder) / "a file").write_text("something to read" * 100_000)
            assert len(await (await client.get(f"/files/{Path(folder).name}/a file")).read()) == 1700000
        assert threads("web") == ["web"]
        assert {type(t).__module__.partition(".")[0] for t in threading.enumerate() if LOOP in t.name} == {"ebbpool"}
    assert threads("web") == []

with asyncio.Runner(loop_factory=new_event_loop if LOOP == "asyncio" else new_uvloop) as runner:
    runner.run(main())
"""

PYDANTIC_AI = """
assert pool.stats().completed == 2
pool = AdaptiveExecutor(thread_name_prefix="again")
names = []

def remember() -> str:
    names.append(name())
    return "remembered"

other = Agent(TestModel(), tools=[remember])

async def again():
    async with pool:
        with Agent.using_thread_executor(pool):
            await other.run("Go on.")

asyncio.run(again())
assert (names, pool.stats().completed) == (["again_0"], 1)
"""

APSCHEDULER = """
pool = AdaptiveExecutor(thread_name_prefix="jobs")
lane = pool.lane("reports", limit=2)
scheduler = BackgroundScheduler(executors={"default": PoolExecutor(pool), "reports": PoolExecutor(lane)})
names = []
done = threading.Semaphore(0)

def job():
    names.append(name().partition("_")[0])
    done.release()

scheduler.add_job(job)
scheduler.add_job(job, executor="reports")
scheduler.start()
assert done.acquire(timeout=10) and done.acquire(timeout=10) and names == ["jobs", "jobs"]
scheduler.shutdown()
assert (pool.stats().completed, lane.stats().completed, pool.stats().workers) == (2, 1, 0)
"""

LANGCHAIN = """
assert (pool.stats().completed, pool.stats().workers) == (80, 0)
"""

NUMPY = """
from threadpoolctl import threadpool_info

def limits():
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

with threadpool_limits(limits=1, user_api="blas"), AdaptiveExecutor(thread_name_prefix="numbers") as pool:
    # A result is there before its worker is free again, and the task counted.
    assert pool.submit(limits).result() == {1} and pool.wait_idle(10)
    assert pool.submit(product, 100).result() == 25 and pool.wait_idle(10) and pool.stats().completed == 2
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith('numbers')] == ["numbers_0"]
"""

CELERY = """
import time
from celery import Celery
from celery.concurrency import get_implementation
from celery.contrib.testing.worker import start_worker
from celery.exceptions import SoftTimeLimitExceeded
from celery.worker.autoscale import Autoscaler

app = Celery("example", broker="memory://", backend="cache+memory://")
app.conf.worker_pool = "ebbpool.celery:TaskPool"
logging.disable(logging.CRITICAL)
work = app.task(name)

@app.task(soft_time_limit=0.2)
def endless():
    try:
        while True:
            time.sleep(0.001)
    except SoftTimeLimitExceeded:
        return "cleaned up"

@app.task(soft_time_limit=0.2)
def fails():
    while True:
        time.sleep(0.001)

@app.task(soft_time_limit=30)
def quick():
    return "in time"

TaskPool = get_implementation(app.conf.worker_pool)
with start_worker(app, pool=TaskPool, concurrency=2, perform_ping_check=False) as worker:
    pool = worker.pool

    def threads_of_the_pool():
        assert pool.num_processes == pool.executor.stats().max_workers
        return pool.num_processes

    assert work.delay().get(timeout=20) == "celery_0"
    assert (pool.info["implementation"], pool.info["max-concurrency"]) == ("ebbpool.celery:TaskPool", 2)
    # Both threads of the pool are taken by tasks that only the limit ends.
    assert [task.get(timeout=20) for task in [endless.delay(), endless.delay()]] == ["cleaned up"] * 2
    assert quick.delay().get(timeout=20) == "in time"
    assert type(fails.delay().get(timeout=20, propagate=False)).__name__ == "SoftTimeLimitExceeded"
    pool.grow(3)
    assert threads_of_the_pool() == 5
    pool.shrink(2)
    assert threads_of_the_pool() == 3
    pool.shrink(9)
    assert threads_of_the_pool() == 1
    try:
        type("Hasty", (TaskPool,), {"settings": {"max_wait": 0.5}})(2)
    except ValueError as error:
        assert str(error) == "settings: max_wait=0.5 would lose tasks, of which Celery has none run again"
    else:
        raise AssertionError
    scaler = Autoscaler(pool, max_concurrency=8, min_concurrency=4, worker=worker)
    scaler.update(max=8, min=4)
    assert threads_of_the_pool() == 4
"""

GRPC = """
import grpc

pool = AdaptiveExecutor(thread_name_prefix="grpc")
begun, go = threading.Semaphore(0), threading.Event()

def unary(request, context):
    return name().partition("_")[0].encode() + request

def slow(request, context):
    begun.release()
    go.wait(20)
    return b"done"

def stream(request, context):
    for number in range(5):
        yield str(number).encode()

def both(requests, context):
    for request in requests:
        yield request * 2

handlers = {
    "Unary": grpc.unary_unary_rpc_method_handler(unary),
    "Slow": grpc.unary_unary_rpc_method_handler(slow),
    "Stream": grpc.unary_stream_rpc_method_handler(stream),
    "Both": grpc.stream_stream_rpc_method_handler(both),
}
server = grpc.server(pool)
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Example", handlers),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
    assert channel.unary_unary("/Example/Unary")(b"!", timeout=20) == b"grpc!"
    assert list(channel.unary_stream("/Example/Stream")(b"", timeout=20)) == [b"0", b"1", b"2", b"3", b"4"]
    assert list(channel.stream_stream("/Example/Both")(iter([b"a", b"b"]), timeout=20)) == [b"aa", b"bb"]
    calls = [channel.unary_unary("/Example/Slow").future(b"", timeout=20) for _ in range(30)]
    for _ in calls:
        begun.acquire(timeout=20)
    stopped = server.stop(grace=20)
    go.set()
    assert stopped.wait(20) and {call.result() for call in calls} == {b"done"}
pool.shutdown()
assert pool.stats().workers == 0
"""

JUPYTER = """
import ipykernel
import subprocess
from jupyter_client.manager import start_new_kernel

manager, client = start_new_kernel(kernel_name="python3", stderr=subprocess.DEVNULL)
cells = [
    "import asyncio, threading, ebbpool; installed = ebbpool.install(); print(installed.parts['asyncio'])",
    "print((await asyncio.to_thread(threading.current_thread)).name)",
    "installed.undo(); print((await asyncio.to_thread(threading.current_thread)).name)",
]
for cell in cells:
    client.execute_interactive(cell, timeout=20, store_history=False)
client.stop_channels()
manager.shutdown_kernel(now=True)
"""
OF_JUPYTER = ("the default executor of new loops, and of the one that runs", "ebbpool_0", "asyncio_0")


@pytest.mark.parametrize(
    ("place", "number", "use", "printed"),
    [
        FASTAPI,
        FASTAPI_WATCHES,
        case("requests that hold a connection go on", "", CONNECTIONS),
        case("starlette", "frameworks#Starlette", STARLETTE),
        case("litestar", "frameworks#Litestar", LITESTAR),
        case("django", "django", DJANGO),
        case("django has one warm thread for each request", "", DJANGO_SESSIONS),
        case("flask", "frameworks#Flask", FLASK),
        *(
            case(f"aiohttp {loop}", "frameworks#aiohttp", f"import {loop}\nLOOP = {loop!r}\n{AIOHTTP}")
            for loop in ("asyncio", "uvloop")
        ),
        case("pydantic-ai", "more#pydantic-ai", PYDANTIC_AI, '{"weather":"sunny","traffic":"calm"}'),
        case("apscheduler", "more#APScheduler", APSCHEDULER),
        case("celery", "", CELERY),
        case("grpc", "", GRPC),
        case("langchain", "more#langchain-core", LANGCHAIN, "['PAGE 0', 'PAGE 1', "),
        case("numpy", "more#numpy", NUMPY, "2000.0"),
        case("jupyter", "", JUPYTER, *OF_JUPYTER),
    ],
)
def test_a_library_uses_the_pool(place: str, number: int, use: str, printed: tuple[str, ...], tmp_path: Path) -> None:
    lines = use_example(place, f"FILE = {str(tmp_path / 'data')!r}\n{HELPERS}{use}", number)
    assert len(lines) == len(printed) and all(map(str.startswith, lines, printed)), lines
