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


def completed(count: int) -> str:
    return f"assert (pool.stats().completed, pool.stats().workers) == ({count}, 0)"


FASTAPI = """
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
"""

FASTAPI_ERRORS = """
from starlette.testclient import TestClient

@app.post("/sold-out")
def sold_out(order: dict[str, int]):
    raise HTTPException(410, f"no {order['what']} left")

with TestClient(app) as client:
    answer = client.post("/sold-out", json={"what": 7})
    assert (answer.status_code, answer.json()) == (410, {"detail": "no 7 left"})
    assert client.get("/sum").json() == {"sum": 49999995000000}
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

urlpatterns = [path("plain", plain), path("view", view)]
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

asyncio.run(main())
pool.shutdown()
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

with asyncio.Runner(loop_factory=new_loop_factory(None if LOOP == "asyncio" else __import__("uvloop").Loop)) as runner:
    runner.run(main())
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

CELERY = """
from celery import Celery
from celery.concurrency import get_implementation
from celery.contrib.testing.worker import start_worker
from celery.worker.autoscale import Autoscaler

app = Celery("example", broker="memory://", backend="cache+memory://")
app.conf.worker_pool = "ebbpool.celery:TaskPool"
logging.disable(logging.CRITICAL)
work = app.task(name)

TaskPool = get_implementation(app.conf.worker_pool)
with start_worker(app, pool=TaskPool, concurrency=2, perform_ping_check=False) as worker:
    pool = worker.pool

    def threads_of_the_pool():
        assert pool.num_processes == pool.executor.stats().max_workers
        return pool.num_processes

    assert work.delay().get(timeout=20) == "celery_0"
    assert (pool.info["implementation"], pool.info["max-concurrency"]) == ("ebbpool.celery:TaskPool", 2)
    pool.grow(3)
    assert threads_of_the_pool() == 5
    pool.shrink(2)
    assert threads_of_the_pool() == 3
    pool.shrink(9)
    assert threads_of_the_pool() == 1
    try:
        type("Hasty", (TaskPool,), {"settings": {"max_wait": 0.5}})(2)
    except ValueError as error:
        assert str(error) == "settings: max_wait=0.5 would drop tasks, which Celery does not retry"
    else:
        raise AssertionError
    scaler = Autoscaler(pool, max_concurrency=8, min_concurrency=4, worker=worker)
    scaler.update(max=8, min=4)
    assert threads_of_the_pool() == 4
"""


@pytest.mark.parametrize(
    ("place", "number", "use", "printed"),
    [
        case("fastapi", "fastapi", FASTAPI, number=1),
        case("fastapi hears of errors under a dependency that watches the client", "fastapi", FASTAPI_ERRORS, number=2),
        case("starlette", "frameworks#Starlette", STARLETTE),
        case("litestar", "frameworks#Litestar", LITESTAR),
        case("django", "django", DJANGO),
        case("django has one warm thread for each request", "", DJANGO_SESSIONS),
        case("flask", "frameworks#Flask", FLASK),
        *(
            case(f"aiohttp {loop}", "frameworks#aiohttp", f"import {loop}\nLOOP = {loop!r}\n{AIOHTTP}")
            for loop in ("asyncio", "uvloop")
        ),
        case("pydantic-ai", "more#pydantic-ai", completed(2), '{"weather":"sunny","traffic":"calm"}'),
        case("apscheduler", "more#APScheduler", APSCHEDULER),
        case("celery", "", CELERY),
        case("grpc", "more#gRPC", completed(2), "b'HELLO'", "[b'0', b'1', b'2']"),
    ],
)
def test_a_library_uses_the_pool(place: str, number: int, use: str, printed: tuple[str, ...], tmp_path: Path) -> None:
    lines = use_example(place, f"FILE = {str(tmp_path / 'data')!r}\n{HELPERS}{use}", number)
    assert len(lines) == len(printed) and all(map(str.startswith, lines, printed)), lines
