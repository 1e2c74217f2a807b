"""Many clients of FastAPI, each with a connection of SQLAlchemy's pool: no request freezes."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.common import output_of
from support.pages import skip_without_packages

SCRIPT = """
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


@pytest.mark.parametrize(
    "clients",
    [
        100,
        300,
    ],
)
def test_requests_that_hold_a_connection_go_on(clients: int, tmp_path: Path) -> None:
    skip_without_packages(SCRIPT)
    url = f"sqlite:///{tmp_path / 'data.db'}"
    printed = output_of(f"URL = {url!r}\nCLIENTS = {clients}\n{SCRIPT}")
    assert printed == [f"QueuePool {clients}"]
