"""FastAPI with SQLAlchemy, all of it: sync endpoints on a pool, 503 under overload, metrics, and `top`.

Four of the endpoints make one query of 50 ms each: with and without a response model, with and without a commit at the
end of the dependency. In a copy for your own app, replace them with `find`, `Item` and `ItemOut`, and leave `pause` and
the first item out of `connect`. Start it, and ask it::

    python -m pip install fastapi prometheus_client rich sqlalchemy uvicorn
    EBBPOOL_MONITOR=./app.sock uvicorn fastapi_sqlalchemy:app

    seq 2000 | xargs -P 100 -I{} curl -s -o /dev/null localhost:8000/model

In another terminal, meanwhile::

    python -m ebbpool top ./app.sock
    curl -s localhost:8000/metrics
"""

import math
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest
from pydantic import BaseModel, ConfigDict
from sqlalchemy import Engine, create_engine, event, func, select
from sqlalchemy.exc import TimeoutError as NoConnection
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import ebbpool.anyio
from ebbpool import AdaptiveExecutor, QueueFull
from ebbpool.prometheus import PoolCollector

REGISTRY.register(PoolCollector())
sessions = sessionmaker()


class Base(DeclarativeBase):
    """The base of all tables."""


class Item(Base):
    """A row of the table."""

    __tablename__ = "items"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


class ItemOut(BaseModel):
    """The response model."""

    model_config = ConfigDict(from_attributes=True)

    id: int
    name: str


def connect(
    url: str = "sqlite:///items.db", pool_size: int = 15, max_overflow: int = 0, pool_timeout: float = 5.0
) -> Engine:
    """Open the database for all sessions, and make the table if there is none.

    Args:
        url: The database. It has to be in a file: one in memory has a connection for each thread.
        pool_size: How many connections there may be, and stay open.
        max_overflow: How many more there may be; these are closed when they are released.
        pool_timeout: Seconds that a query waits for a connection.
    """
    engine = create_engine(url, pool_size=pool_size, max_overflow=max_overflow, pool_timeout=pool_timeout)
    event.listen(engine, "connect", lambda connection, _: connection.create_function("pause", 1, time.sleep))
    sessions.configure(bind=engine)
    Base.metadata.create_all(engine)
    with sessions.begin() as db:
        db.merge(Item(id=1, name="first"))
    return engine


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Have the sync endpoints run on a pool, in which a call waits for a thread for 5 s at most."""
    engine = connect()
    async with AdaptiveExecutor(thread_name_prefix="web", max_wait=5.0) as pool:
        with ebbpool.anyio.install(pool):
            yield
    engine.dispose()


app = FastAPI(lifespan=lifespan)


@app.exception_handler(QueueFull)
@app.exception_handler(NoConnection)
async def busy(request: Request, error: QueueFull | NoConnection) -> JSONResponse:
    """Answer 503 if a call has waited too long for a thread, or a query for a connection."""
    seconds = math.ceil(error.retry_after) if isinstance(error, QueueFull) else 1
    return JSONResponse({"detail": "busy"}, 503, headers={"Retry-After": str(max(1, seconds))})


def get_db() -> Iterator[Session]:
    """Give each request a session, which takes a connection with its first query and gives it back at the end."""
    with sessions() as db:
        yield db


def get_db_and_commit() -> Iterator[Session]:
    """Commit what the request has done, or roll it back if it failed."""
    with sessions.begin() as db:
        yield db


def find(db: Session) -> Item:
    """Return a row after 50 ms in the database."""
    return db.scalars(select(Item).where(Item.id == 1, func.pause(0.05).is_(None))).one()


@app.get("/plain", response_model=None)
def plain(db: Annotated[Session, Depends(get_db)]) -> dict[str, Any]:
    """Need a thread for `get_db`, for this function and for the end of `get_db`."""
    item = find(db)
    return {"id": item.id, "name": item.name}


@app.get("/model", response_model=ItemOut)
def model(db: Annotated[Session, Depends(get_db)]) -> Item:
    """Need one for the response model, too, and hold a connection all the while."""
    return find(db)


@app.get("/plain-commit", response_model=None)
def plain_commit(db: Annotated[Session, Depends(get_db_and_commit)]) -> dict[str, Any]:
    """Commit at the end, without a response model."""
    return plain(db)


@app.get("/model-commit", response_model=ItemOut)
def model_commit(db: Annotated[Session, Depends(get_db_and_commit)]) -> Item:
    """Commit at the end, with a response model."""
    return find(db)


@app.get("/health", response_model=None)
async def health() -> dict[str, str]:
    """Answer at once, beside whatever the others do: on the loop, so it needs no thread."""
    return {"status": "alive"}


@app.get("/metrics", response_model=None)
async def metrics() -> Response:
    """Answer Prometheus."""
    return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)
