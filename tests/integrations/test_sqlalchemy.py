"""FastAPI with SQLAlchemy: the app in examples/ with many more clients than connections, and docs/integrations."""

from __future__ import annotations

import asyncio
import importlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.common import TIMEOUT, python
from support.loops import until
from support.pages import ROOT, blocks_of

import ebbpool.anyio
from ebbpool import AdaptiveExecutor

pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")
pytest.importorskip("prometheus_client")
httpx = pytest.importorskip("httpx")

EXAMPLES = ROOT / "examples"
ITEM = {"id": 1, "name": "first"}
ASK_ONCE = f"""
import asyncio
import sys
import threading

import ebbpool
import httpx

sys.path.insert(0, {str(EXAMPLES)!r})
from fastapi_sqlalchemy import app, create_engine, sessions

URL = "sqlite:///items.db"


async def main():
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")
    async with app.router.lifespan_context(app), client:
        for path in ("/plain", "/model", "/plain-commit", "/model-commit", "/health"):
            print((await client.get(path)).json())
        metrics = (await client.get("/metrics")).text
        (pool,) = ebbpool.pools()
        assert f'ebbpool_task_submissions_total{{{{pool="web"}}}} {{pool.stats().submitted:.1f}}' in metrics
        print(pool.stats().submitted)
        sessions.configure(bind=(few := create_engine(URL, pool_size=1, max_overflow=0, pool_timeout=0.01)))
        with few.connect():
            print(*told(await client.get("/plain")))
        few.dispose()
        pool.resize(max_workers=1, max_wait=0.01)
        begun, gate = threading.Event(), threading.Event()
        pool.within(60.0).submit(lambda: (begun.set(), gate.wait(20)))
        assert begun.wait(20)
        print(*told(await client.get("/plain")))
        gate.set()


def told(answer):
    return answer.status_code, answer.headers["Retry-After"]


asyncio.run(main())
"""


ASK_WITHOUT_A_CONNECTION = """
import asyncio
import sqlite3

import ebbpool
import httpx


async def main():
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")
    async with app.router.lifespan_context(app), client:
        assert (await client.get("/version")).json() == {"version": sqlite3.sqlite_version}
        assert [pool.stats().submitted for pool in ebbpool.pools()] == [4]
        sessions.configure(bind=(few := create_engine(engine.url, pool_size=1, max_overflow=0, pool_timeout=0.01)))
        with few.connect():
            answer = await client.get("/version")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        few.dispose()
        engine.dispose()


asyncio.run(main())
"""


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The example, with `engine`, its database of three connections."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    module = importlib.import_module("fastapi_sqlalchemy")
    url = f"sqlite:///{tmp_path / 'items.db'}"
    engine = module.connect(url, pool_timeout=TIMEOUT, pool_size=2, max_overflow=1)
    yield SimpleNamespace(app=module.app, engine=engine)
    engine.dispose()


@asynccontextmanager
async def sixteen_threads(app: Any) -> AsyncIterator[tuple[AdaptiveExecutor, Any]]:
    """Yield a pool that runs the app's sync endpoints, and a client of the app."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=None) as client:
        with AdaptiveExecutor(16) as pool, ebbpool.anyio.install(pool):
            yield pool, client


@pytest.mark.parametrize("path", ["/plain", "/model", "/plain-commit", "/model-commit"])
def test_whoever_has_a_connection_gets_to_give_it_back(example: Any, path: str) -> None:
    async def main() -> None:
        async with sixteen_threads(example.app) as (_, client):
            answers = await asyncio.gather(*(client.get(path) for _ in range(100)))
        assert Counter(answer.status_code for answer in answers) == {200: 100}
        assert all(answer.json() == ITEM for answer in answers)

    asyncio.run(main())
    assert example.engine.pool.checkedout() == 0


def test_a_quick_endpoint_has_a_thread_while_all_wait_for_a_connection(example: Any) -> None:
    def quick() -> dict[str, str]:
        return {"status": "alive"}

    async def main() -> None:
        example.app.get("/quick")(quick)
        async with sixteen_threads(example.app) as (pool, client), asyncio.TaskGroup() as group:
            with ExitStack() as held:
                for _ in range(3):
                    held.enter_context(example.engine.connect())
                for _ in range(100):
                    group.create_task(client.get("/plain"))
                await until(lambda: pool.stats().completed >= 100 and pool.stats().running >= 16, "all threads wait")
                answer = group.create_task(client.get("/quick"))
                answered, _ = await asyncio.wait([answer], timeout=TIMEOUT / 2)
        assert answered and answer.result().json() == quick()

    asyncio.run(main())


def test_the_example_runs_as_it_stands(tmp_path: Path) -> None:
    done = python("-W", "error", "-c", ASK_ONCE, cwd=tmp_path)
    answers = [str(ITEM)] * 4 + ["{'status': 'alive'}", str(3 + 4 + 3 + 4), "503 1", "503 1"]
    assert (done.stdout.splitlines(), done.stderr) == (answers, "")


def test_the_page(tmp_path: Path) -> None:
    (code,) = blocks_of(ROOT / "docs/integrations/sqlalchemy.md")
    done = python("-W", "error", "-c", code + ASK_WITHOUT_A_CONNECTION, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
