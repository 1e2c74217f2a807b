"""The app of docs/how-to/lab.md: it freezes, falls behind and burns CPU."""

import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from typing import Annotated

from fastapi import Depends, FastAPI, Response
from prometheus_client import REGISTRY, generate_latest

import ebbpool.anyio
from ebbpool import AdaptiveExecutor
from ebbpool.prometheus import PoolCollector

REGISTRY.register(PoolCollector())


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Run sync code on a pool, but leave anyio its limit of forty threads."""
    async with AdaptiveExecutor(40, thread_name_prefix="lab") as pool:
        app.state.pool = pool
        with ebbpool.anyio.install(pool, keep_default_limiter=True):
            yield


app = FastAPI(lifespan=lifespan)
connections = threading.Semaphore(15)  # as many as SQLAlchemy's QueuePool has


class Session:
    """A session that takes a connection with its first query, as SQLAlchemy's do."""

    connected = False

    def query(self) -> str:
        """Return a row after 50 ms, once there is a connection."""
        if not connections.acquire(timeout=3):
            raise TimeoutError("QueuePool limit reached, connection timed out")
        self.connected = True
        time.sleep(0.05)
        return "a row"

    def close(self) -> None:
        """Release the connection, if there is one."""
        if self.connected:
            connections.release()


def get_db() -> Iterator[Session]:
    """Give each request a session."""
    with closing(Session()) as db:
        yield db


@app.get("/items")
def items(db: Annotated[Session, Depends(get_db)]) -> dict[str, str]:
    """Query the database."""
    return {"item": db.query()}


@app.get("/report")
def report() -> dict[str, str]:
    """Ask another service."""
    time.sleep(1)  # another service
    return {"report": "done"}


@app.get("/export")
def export() -> dict[str, int]:
    """Write one page after another."""
    for _ in range(40):
        time.sleep(0.1)  # one page after another
    return {"pages": 40}


@app.get("/decisions")
async def decisions() -> list[str]:
    """Return why the pool grew, or did not."""
    return [decision.reason for decision in app.state.pool.decisions()]


@app.get("/metrics")
async def metrics() -> Response:
    """Return what Prometheus would scrape."""
    return Response(generate_latest(REGISTRY), media_type="text/plain")
