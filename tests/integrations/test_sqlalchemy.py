"""FastAPI with SQLAlchemy: the app in examples/ with many more clients than connections, and docs/integrations."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path

import pytest
from support.common import TIMEOUT, python
from support.pages import ROOT, blocks_of

import ebbpool.anyio
from ebbpool import AdaptiveExecutor

pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")
httpx = pytest.importorskip("httpx")

EXAMPLES = ROOT / "examples"
ITEM = {"id": 1, "name": "first"}
ASK_ONCE = f"""
import asyncio
import sys

import ebbpool
import httpx

sys.path.insert(0, {str(EXAMPLES)!r})
from fastapi_sqlalchemy import app


async def main():
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")
    async with app.router.lifespan_context(app), client:
        for path in ("/plain", "/model", "/plain-commit", "/model-commit", "/health"):
            print((await client.get(path)).json())
    print(*(pool.stats().submitted for pool in ebbpool.pools()))


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


@pytest.mark.parametrize("path", ["/plain", "/model", "/plain-commit", "/model-commit"])
def test_every_request_gets_a_connection(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    example = importlib.import_module("fastapi_sqlalchemy")

    async def main() -> None:
        async def ask() -> None:
            answer = await client.get(path)
            assert (answer.status_code, answer.json()) == (200, ITEM)

        transport = httpx.ASGITransport(example.app, raise_app_exceptions=False)
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://test", timeout=None) as client,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(100):
                group.create_task(ask())

    url = f"sqlite:///{tmp_path / 'items.db'}"
    engine = example.connect(url, pool_timeout=TIMEOUT, pool_size=2, max_overflow=1)
    try:
        with AdaptiveExecutor(16) as pool, ebbpool.anyio.install(pool):
            asyncio.run(main())
        assert engine.pool.checkedout() == 0
    finally:
        engine.dispose()


def test_it_runs_as_it_stands(tmp_path: Path) -> None:
    done = python("-W", "error", "-c", ASK_ONCE, cwd=tmp_path)
    calls = 3 + 4 + 3 + 4 + 1
    assert (done.stdout.splitlines(), done.stderr) == ([str(ITEM)] * 4 + ["{'status': 'alive'}", str(calls)], "")


def test_the_page(tmp_path: Path) -> None:
    (code,) = blocks_of(ROOT / "docs/integrations/sqlalchemy.md")
    done = python("-W", "error", "-c", code + ASK_WITHOUT_A_CONNECTION, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
