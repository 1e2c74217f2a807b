"""Every example in the README and in the documents runs as it stands, in an interpreter of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.common import TIMEOUT, eventually, run_script
from support.pages import ROOT, blocks_of, skip_without_packages

import ebbpool

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/integrations").glob("*.md"))]
BLOCKS = [
    pytest.param(code, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, code in enumerate(blocks_of(page), 1)
    if "AdaptiveExecutor(max_workers=None" not in code
]
"""The code of all blocks but the one that is a signature."""
SERVERS = [block for block in BLOCKS if "prefork.run(" in str(block.values[0])]
"""Programs that serve port 8000 until they are told to stop, and that other processes import."""
EXAMPLES = [block for block in BLOCKS if block not in SERVERS]

ASK = """
import asyncio
import threading

async def ask():
    sent = []
    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}
    async def send(message):
        sent.append(message)
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
             "path": "/report", "raw_path": b"/report", "query_string": b"", "headers": [], "root_path": "",
             "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)}
    await app(scope, receive, send)
    return sent

print(asyncio.run(ask())[-1]["body"].decode())
print(sum(thread.name.startswith("ebbpool-anyio") for thread in threading.enumerate()))
"""
"""Sends the FastAPI app of the README a request; prints the answer, and how many threads of the pool there are."""


@pytest.mark.parametrize("code", EXAMPLES)
def test_an_example_runs(code: str, tmp_path: Path) -> None:
    skip_without_packages(code)
    (tmp_path / "a file").write_text("something to read")
    is_app = "FastAPI()" in code
    done = run_script(f"import os; os.chdir({str(tmp_path)!r})\n" + code + (ASK if is_app else ""))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    if is_app:
        assert done.stdout.splitlines() == ['{"status":"done"}', "1"]


@contextmanager
def running(program: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a program in a folder and a process group of its own; nothing of it is left afterwards."""
    environment = dict(os.environ, PYTHONPATH=str(Path(ebbpool.__file__).parent.parent))
    with subprocess.Popen(
        [sys.executable, program.name],
        cwd=program.parent,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.skipif(os.name != "posix", reason="no signal stops it there")
@pytest.mark.parametrize("code", SERVERS)
def test_an_example_serves_until_it_is_told_to_stop(code: str, tmp_path: Path) -> None:
    with socket.socket() as probe, socket.socket() as other:
        probe.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        port, metrics = probe.getsockname()[1], other.getsockname()[1]
    program = tmp_path / "program.py"
    program.write_text(code.replace("8000", str(port)).replace("9464", str(metrics)), encoding="utf-8")

    def answers() -> bool:
        assert process.poll() is None
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=TIMEOUT) as response:
                return b"program.py" in response.read()
        except OSError:
            return False

    with running(program) as process:
        eventually(answers, "the example answers")
        process.terminate()
        assert process.wait(TIMEOUT) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5
    assert SERVERS
