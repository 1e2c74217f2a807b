"""FastAPI with SQLAlchemy, the sync endpoints on ebbpool's threads.

Four of the endpoints make one query of 50 ms each: with and without a response model, with and without a commit at the
end of the dependency::

    python -m pip install fastapi sqlalchemy uvicorn
    uvicorn fastapi_sqlalchemy:app
"""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI
from pydantic import BaseModel, ConfigDict
from sqlalchemy import Engine, create_engine, event, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import ebbpool.anyio

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


def connect(url: str = "sqlite:///items.db", pool_timeout: float = 5.0, **options: Any) -> Engine:
    """Open the database for all sessions, and make the table if there is none.

    Args:
        url: The database. It has to be in a file: one in memory has a connection for each thread.
        pool_timeout: Seconds that a query waits for a connection.
        options: Further arguments of `create_engine`, such as `pool_size`.
    """
    engine = create_engine(url, pool_timeout=pool_timeout, **options)
    event.listen(engine, "connect", lambda connection, _: connection.create_function("pause", 1, time.sleep))
    sessions.configure(bind=engine)
    Base.metadata.create_all(engine)
    with sessions.begin() as db:
        db.merge(Item(id=1, name="first"))
    return engine


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Have the sync endpoints run on ebbpool."""
    engine = connect()
    with ebbpool.anyio.install():
        yield
    engine.dispose()


app = FastAPI(lifespan=lifespan)


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
def health() -> dict[str, str]:
    """Answer at once, beside whatever the others do."""
    return {"status": "alive"}
