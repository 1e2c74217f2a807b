"""The small apps in examples/, each with the libraries it is about; FastAPI with SQLAlchemy has tests of its own."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.common import TIMEOUT, Background, environment, eventually, python
from support.loops import until
from support.pages import ROOT, skip_without_packages
from support.server import program, reserved_port

import ebbpool

EXAMPLES = ROOT / "examples"
MEETING = """
import threading
import types

import flask_gunicorn
from flask_gunicorn import Worker, app

# What the app waits for is that all twenty requests have a thread.
meeting = threading.Barrier(20)
flask_gunicorn.time = types.SimpleNamespace(sleep=lambda _: meeting.wait(20))
"""

posix = pytest.mark.skipif(os.name != "posix", reason="it is for systems with signals and forks")


def path_of(name: str) -> str:
    """Return an example's path; skip the test if the example needs what is not installed."""
    path = EXAMPLES / f"{name}.py"
    skip_without_packages(path.read_text(encoding="utf-8"))
    return str(path)


@asynccontextmanager
async def mcp_server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Any, Any, ebbpool.AdaptiveExecutor]]:
    """Serve the MCP example over HTTP; yield its module, a client and the pool."""
    path_of("mcp_server")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "mcp_server", raising=False)  # a server is for one loop
    module = importlib.import_module("mcp_server")
    client_class, uvicorn = importlib.import_module("mcp").Client, importlib.import_module("uvicorn")
    server = uvicorn.Server(uvicorn.Config(module.mcp.streamable_http_app(), log_config=None))
    with reserved_port() as port:
        server.config.port = port
        serving = asyncio.create_task(server.serve())
        await until(lambda: server.started or serving.done(), "it serves")
        try:
            async with client_class(f"http://127.0.0.1:{port}/mcp") as client:
                (pool,) = [pool for pool in ebbpool.pools() if pool.name == "tools"]
                yield module, client, pool
        finally:
            server.should_exit = True
            await serving
    assert pool.stats().workers == 0


def running(pool: ebbpool.AdaptiveExecutor, name: str) -> int:
    return sum(task.name == name for task in pool.running())


def test_sync_tools_of_an_mcp_server_hold_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with mcp_server(monkeypatch) as (module, client, pool):
            gate = threading.Event()
            monkeypatch.setattr(module, "time", SimpleNamespace(sleep=lambda _: gate.wait(TIMEOUT)))
            try:
                async with asyncio.TaskGroup() as group:
                    reports = [group.create_task(client.call_tool("report")) for _ in range(50)]
                    # More than anyio's own forty.
                    await until(lambda: running(pool, "mcp_server.report") == 50, "all reports have a thread")
                    added = await client.call_tool("add_up", {"numbers": 5})
                    assert added.structured_content == {"result": 10}
                    gate.set()
            finally:
                gate.set()
            assert {report.result().structured_content["result"] for report in reports} == {"done"}

    asyncio.run(main())


def test_a_tool_of_an_mcp_server_gives_up_once_its_client_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with mcp_server(monkeypatch) as (_, client, pool):
            leaving = asyncio.create_task(client.call_tool("add_up", {"numbers": 10**12}))
            await until(lambda: running(pool, "mcp_server.add_up"), "it adds up")
            leaving.cancel()
            await until(lambda: not running(pool, "mcp_server.add_up"), "it has given up")

    asyncio.run(main())


def test_the_database_of_an_mcp_server_is_used_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with mcp_server(monkeypatch) as (_, client, _):
            # sqlite3 refuses a connection in any thread but its own.
            asking = (client.call_tool("query", {"sql": f"select {number}, 'a'"}) for number in range(20))
            answers = await asyncio.gather(*asking)
            assert [answer.structured_content["result"] for answer in answers] == [[[n, "a"]] for n in range(20)]

    asyncio.run(main())


@posix
def test_flask_under_gunicorn(tmp_path: Path) -> None:
    path_of("flask_gunicorn")
    (tmp_path / "meeting.py").write_text(MEETING, encoding="utf-8")

    def get(path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=3 * TIMEOUT) as response:
            return json.load(response)

    def answers() -> bool:
        try:
            return bool(get("threads"))
        except OSError:
            return False

    with reserved_port() as port:
        how = ["-m", "gunicorn", "-k", "meeting.Worker", "-b", f"127.0.0.1:{port}", "--no-control-socket"]
        environ = environment()["PYTHONPATH"] + os.pathsep + str(EXAMPLES)
        with program(*how, "meeting:app", cwd=tmp_path, PYTHONPATH=environ):
            eventually(answers, "gunicorn answers", 3 * TIMEOUT)
            together = [Background(lambda: get("report")) for _ in range(20)]
            assert [client.join() for client in together] == [{"status": "done"}] * 20
            assert get("threads")["web"] >= 20


@posix
def test_an_asyncio_worker(tmp_path: Path) -> None:
    expected = []
    for number in range(50):
        (tmp_path / f"{number}").write_bytes(b"%d" % number)
        expected.append(f"{hashlib.sha256(b'%d' % number).hexdigest()}  {number}")
    how = [sys.executable, path_of("asyncio_worker")]
    given = "".join(f"{number}\n" for number in range(50)) + "none\n"
    done = subprocess.run(how, cwd=tmp_path, env=environment(), input=given, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == sorted([*expected, "No such file or directory: none"])
    pipe = subprocess.PIPE
    with subprocess.Popen(how, cwd=tmp_path, env=environment(), stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin and process.stdout
        process.stdin.write("7\n")
        process.stdin.flush()
        assert process.stdout.readline().strip() == expected[7]
        process.send_signal(signal.SIGTERM)
        assert process.wait(3 * TIMEOUT) == 0


@posix
def test_celery_tasks(tmp_path: Path) -> None:
    example = path_of("celery_tasks")
    environ = environment()["PYTHONPATH"] + os.pathsep + str(EXAMPLES)
    how = ["-m", "celery", "-A", "celery_tasks", "worker", "--concurrency", "50", "-n", "test@localhost"]
    with program(*how, cwd=tmp_path, PYTHONPATH=environ):
        done = python(example, cwd=tmp_path, timeout=90)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("20 answers in "), done.stdout
        assert done.stdout.endswith("answer of https://example.com/19\n")


def test_dask_over_files(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number}.txt").write_text("ebb and flow")
    done = python(path_of("dask_files"), str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("90 words in 30 files, in ")
    assert int(done.stdout.split()[-2]) >= 30
