"""The how-to pages: the table of one-switch.md, cell by cell, and the lab of lab.md, before each cure and after it."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.common import TIMEOUT, Background, environment, eventually, python
from support.monitor import Talk
from support.pages import ROOT, blocks_of, changed, changes_of, skip_without_packages
from support.server import reserved_port

PROGRAM = """
import asyncio
import io
import os
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import ebbpool

if sys.argv[1] == "install":
    ebbpool.install()

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

COLUMNS = ("stock", "install", "run")


def table() -> dict[str, list[str]]:
    """Return the cells of the table, by what stands in the first."""
    text = (ROOT / "docs/how-to/one-switch.md").read_text(encoding="utf-8")
    lines = text[text.index("| way in |") :].splitlines()
    table = itertools.takewhile(lambda line: line.startswith("|"), lines)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    assert rows[0] == ["way in", "stock", "`ebbpool.install()`", "`run`"]
    return {first: cells for first, *cells in rows[2:]}


@pytest.mark.parametrize("column", COLUMNS)
def test_a_column_of_the_table(column: str, tmp_path: Path) -> None:
    skip_without_packages(PROGRAM)
    (tmp_path / "ways.py").write_text(PROGRAM, encoding="utf-8")
    how = ("-m", "ebbpool", "run") if column == "run" else ()
    done = python("-W", "ignore", *how, "ways.py", column, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = dict(re.findall(r"(.*): (pool|own)\n", done.stdout))
    assert found == {way: cells[COLUMNS.index(column)] for way, cells in table().items()}


LAB, FILES = ROOT / "docs/how-to/lab.md", ROOT / "examples/lab"
PLAIN = "with ebbpool.anyio.install(pool, keep_default_limiter=True):"
"""What leaves anyio its limit; without it the app runs on anyio's own threads."""


def app_after(cures: int) -> str:
    """Return the app of the page after as many of its changes."""
    text = (FILES / "lab.py").read_text(encoding="utf-8")
    for change in changes_of(LAB)[:cures]:
        text = changed(text, change)
    return text


class App:
    """A server of the lab, and what has been seen of it."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self._port = port

    def load(self, name: str) -> Counter[str]:
        """Run `load.py`; return what it has counted, in the last two seconds only if it counts by the second."""
        script = (FILES / "load.py").read_text(encoding="utf-8").replace("8000", str(self._port))
        (self.folder / "load.py").write_text(script.replace("patience=0.5", "patience=2.0"), encoding="utf-8")
        done = python("load.py", name, cwd=self.folder)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        last = "\n".join(done.stdout.splitlines()[-2:])
        counted = sum((Counter({what: int(n)}) for n, what in re.findall(r"(\d+) x ([\w ]+)", last)), Counter[str]())
        if burnt := re.search(r"(\d+) s in all", last):
            counted["burnt"] = int(burnt[1])
        return counted

    def log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8")

    def look(self) -> dict[str, Any]:
        """Return what `top` would show of the pool."""
        with Talk(self.folder / "s") as talk:
            (pool,) = talk.ask()["pools"]
        return dict(pool)

    def running(self, name: str, abandoned: bool = False) -> int:
        tasks = self.look()["tasks"]
        return sum(task["name"] == f"lab.{name}" and task["abandoned"] == abandoned for task in tasks)


@contextmanager
def serving(folder: Path, app: str) -> Iterator[App]:
    """Run an app of the lab, under uvicorn as on the page; its monitor listens."""
    if os.name != "posix":
        pytest.skip("the monitor needs Unix sockets")
    folder.mkdir()
    (folder / "lab.py").write_text(app, encoding="utf-8")
    leaving = blocks_of(ROOT / "docs/integrations/fastapi.md")[2]
    (folder / "leaving.py").write_text(leaving, encoding="utf-8")
    skip_without_packages(f"import uvicorn\n{app}")
    with reserved_port() as port, (folder / "log").open("w+", encoding="utf-8") as log:
        command = [sys.executable, "-m", "uvicorn", "lab:app", "--port", str(port)]
        env = environment() | {"EBBPOOL_MONITOR": "s"}
        with subprocess.Popen(command, cwd=folder, env=env, stderr=log, stdout=log) as process:
            try:
                app = App(folder, port)
                eventually(lambda: "running on" in app.log(), "it serves", 6 * TIMEOUT)
                yield app
            finally:
                process.kill()


TOGETHER = """
came, all_came = [], asyncio.Event()


async def together() -> None:
    came.append(1)
    if len(came) == 60:
        all_came.set()
    await all_came.wait()


app = FastAPI(lifespan=lifespan, dependencies=[Depends(together)])
"""
"""On a busy machine the clients come one by one, and a query is over before the last of them."""


def test_the_app_of_the_lab_freezes(short_path: Path) -> None:
    app, cured = (
        "import asyncio\n" + app_after(cures).replace("app = FastAPI(lifespan=lifespan)\n", TOGETHER)
        for cures in (0, 1)
    )
    with (
        serving(short_path / "plain", app.replace(PLAIN, "if True:")) as plain,
        serving(short_path / "before", app) as before,
        serving(short_path / "after", cured) as after,
    ):
        loads = [Background(partial(app.load, "freeze")) for app in (plain, before)]
        eventually(lambda: before.running("items") == 40, "all threads wait for a connection", 6 * TIMEOUT)
        assert before.look()["queued"] == 0
        assert after.load("freeze") == {"200": 60}
        for load in loads:
            counted = load.join(6 * TIMEOUT)
            assert counted["500"] > 0
            assert counted.total() == 60


def test_the_app_of_the_lab_is_slow(short_path: Path) -> None:
    with serving(short_path / "before", app_after(1)) as before, serving(short_path / "after", app_after(2)) as after:
        load = Background(partial(before.load, "slow"))
        counted = after.load("slow")
        assert counted["200"] > 5 and counted["503"] > 5
        assert after.look()["expired"] > 0
        assert load.join(6 * TIMEOUT) == {"gave up": 160}


def test_the_app_of_the_lab_burns(short_path: Path) -> None:
    # Longer, and left later, than on the page: on a busy machine all exports begin before the first client leaves.
    apps = [app_after(cures).replace("range(40)", "range(80)") for cures in (2, 3, 4)]
    with (
        serving(short_path / "before", apps[0]) as before,
        serving(short_path / "told", apps[1]) as told,
        serving(short_path / "after", apps[2]) as after,
    ):
        loads = [Background(partial(app.load, "burn")) for app in (before, told)]
        eventually(lambda: told.running("export", abandoned=True) == 30, "all are marked", 6 * TIMEOUT)
        assert after.load("burn")["burnt"] < 60
        assert all(load.join(6 * TIMEOUT)["burnt"] > 120 for load in loads)
        assert "Traceback" not in after.log()
