"""The table of docs/how-to/one-switch.md: each cell, against the library itself."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.pages import ROOT, is_here

import ebbpool

NEEDED = ("asgiref", "dask", "fastapi", "gunicorn", "joblib", "tqdm", "twisted", "uvloop")
pytestmark = pytest.mark.skipif(
    bool(missing := ", ".join(name for name in NEEDED if not is_here(name))), reason=f"not installed here: {missing}"
)

PROGRAM = """
import asyncio
import io
import os
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import ebbpool

if sys.argv[1] in ("install", "executors"):
    ebbpool.install(executors=sys.argv[1] == "executors")

import anyio
import dask
import dask.threaded
import joblib
import trio
import uvloop
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from fastapi import Depends, FastAPI
from fastapi.responses import StreamingResponse
from gunicorn.config import Config
from gunicorn.glogging import Logger
from gunicorn.workers.gthread import ThreadWorker
from tqdm.contrib.concurrent import thread_map


def where(*_):
    # A thread of a pool is named while it runs a task.
    mine = threading.current_thread().name
    return "pool" if any(mine == task.thread for pool in ebbpool.pools() for task in pool.running()) else "own"


def tell(way, *found):
    assert len(set(found)) == 1, found
    print(way, found[0], sep=": ")


app = FastAPI()


def depends():
    return where()


@app.get("/report")
def report(depends: str = Depends(depends)) -> list[str]:
    return [where(), depends]


@app.get("/stream")
def stream():
    return StreamingResponse(where() + " " for _ in range(10))


async def ask(path):
    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}
    client = ApplicationCommunicator(app, scope)
    await client.send_input({"type": "http.request"})
    await client.receive_output()
    body, more = b"", True
    while more:
        message = await client.receive_output()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body.decode()


look_up = socket.getaddrinfo
looked = []
socket.getaddrinfo = lambda *args: (looked.append(where()), look_up(*args))[1]


async def of_loop(name):
    loop = asyncio.get_running_loop()
    tell(
        f"{name}: `run_in_executor(None, ...)`, `asyncio.to_thread`",
        await loop.run_in_executor(None, where),
        await asyncio.to_thread(where),
    )
    before = sum(pool.stats().submitted for pool in ebbpool.pools())
    await loop.getaddrinfo("127.0.0.1", 80)
    after = sum(pool.stats().submitted for pool in ebbpool.pools())
    tell(f"{name}: `loop.getaddrinfo`", "pool" if after > before else "own", *looked[-1:])
    looked.clear()


async def main():
    await of_loop("asyncio")
    tell("`anyio.to_thread.run_sync`", await anyio.to_thread.run_sync(where))
    tell("Starlette and FastAPI: sync endpoints, dependencies", *eval(await ask("/report")))
    tell("Starlette: sync iterators as bodies", *(await ask("/stream")).split())
    tell("asgiref: `sync_to_async(thread_sensitive=False)`", await sync_to_async(where, thread_sensitive=False)())
    tell("asgiref: thread-sensitive code", await sync_to_async(where)())


async def of_trio():
    tell("`trio.to_thread.run_sync`", await trio.to_thread.run_sync(where))


asyncio.run(main())
uvloop.run(of_loop("uvloop"))
trio.run(of_trio)
for limit in (1, 2, None):
    with ThreadPoolExecutor(limit) as executor:
        found = executor.submit(where).result()
tell("`ThreadPoolExecutor(n)`", found)
tell("tqdm: `thread_map`", *thread_map(where, range(3), file=io.StringIO()))
worker = ThreadWorker(1, os.getpid(), [], app, 30, Config(), Logger(Config()))
tell('gunicorn: `--worker-class gthread`', worker.get_thread_pool().submit(where).result())
tell("Dask: the threaded scheduler", dask.compute(dask.delayed(where)(1), scheduler="threads")[0])
tell('joblib: `backend="threading"`', *joblib.Parallel(2, backend="threading")([joblib.delayed(where)()] * 3))

from twisted.internet import reactor, threads

def told(found):
    tell("Twisted: `deferToThread`", found)
    reactor.stop()

reactor.callWhenRunning(lambda: threads.deferToThread(where).addCallback(told))
reactor.run(installSignalHandlers=False)
"""

COLUMNS = ("stock", "install", "run", "executors")


def table() -> dict[str, list[str]]:
    """Return the cells of the table, by what stands in the first."""
    text = (ROOT / "docs/how-to/one-switch.md").read_text(encoding="utf-8")
    lines = text[text.index("| way in |") :].splitlines()
    table = itertools.takewhile(lambda line: line.startswith("|"), lines)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    assert rows[0] == ["way in", "stock", "`install()`", "`run`", "`executors`"]
    return {first: cells for first, *cells in rows[2:]}


@pytest.mark.parametrize("column", COLUMNS)
def test_a_column_of_the_table(column: str, tmp_path: Path) -> None:
    (tmp_path / "ways.py").write_text(PROGRAM, encoding="utf-8")
    how = ("-m", "ebbpool", "run") if column == "run" else ()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *how, "ways.py", column],
        cwd=tmp_path,
        env=dict(os.environ, PYTHONPATH=str(Path(ebbpool.__file__).parent.parent)),
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    found = dict(re.findall(r"(.*): (pool|own)\n", done.stdout))
    assert found == {way: cells[COLUMNS.index(column)] for way, cells in table().items()}
