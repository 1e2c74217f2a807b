"""Every example in the README, on the site and in docstrings runs as it stands, in an interpreter of its own."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
import signal
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, cast

import pytest
from support.common import PLUGIN, TIMEOUT, environment, eventually, python, run_script
from support.pages import ROOT, blocks_of, skip_without_packages
from support.server import reserved_port

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = ["ebbpool.anyio", "ebbpool.opentelemetry", "ebbpool.prefork", "ebbpool.prometheus", "ebbpool.socketserver"]
"""Modules with an example in their docstring."""


class Example(NamedTuple):
    """One block of code, the name in its first line (``# server.py``), and the blocks with a name before it."""

    code: str
    file: str | None
    before: list[Example]


def examples_of(page: Path) -> Iterator[Example]:
    """Yield the examples of a page, all but the one that is a signature."""
    before: list[Example] = []
    for code in blocks_of(page):
        if "AdaptiveExecutor(max_workers=None" not in code:
            named = re.match(r"# (\w+\.py)\n", code)
            example = Example(code, named and named[1], list(before))
            if example.file:
                before.append(example)
            yield example


BLOCKS = [
    pytest.param(example, id=f"{page.relative_to(ROOT).with_suffix('').as_posix()}-{number}")
    for page in PAGES
    for number, example in enumerate(examples_of(page), 1)
]
METRICS = Example((ROOT / "examples/prefork_metrics.py").read_text("utf-8"), None, [])
SERVERS = [block for block in BLOCKS if "prefork.run(" in cast("Example", block.values[0]).code]
"""Programs that serve port 8000 until they are told to stop, and that other processes import."""
FILES = [block for block in BLOCKS if cast("Example", block.values[0]).file]
EXAMPLES = [block for block in BLOCKS if block not in SERVERS and block not in FILES]

ASK = """
import asyncio
import threading
import httpx

async def ask():
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")
    async with app.router.lifespan_context(app), client:
        print((await client.get("/report")).text)
        print(sum(thread.name.startswith("ebbpool-anyio") for thread in threading.enumerate()))

asyncio.run(ask())
"""
"""Sends the FastAPI app of the README a request; prints the answer, and how many threads of the pool there are."""


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs(example: Example, tmp_path: Path) -> None:
    is_app = "ebbpool.anyio.install():" in example.code and '"/report"' in example.code
    code = example.code + (ASK if is_app else "")
    skip_without_packages(code)
    (tmp_path / "a file").write_text("something to read")
    done = run_script(f"import os; os.chdir({str(tmp_path)!r})\n" + code)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    if is_app:
        assert done.stdout.splitlines() == ['{"status":"done"}', "1"]


@pytest.mark.parametrize("example", FILES)
def test_a_file_runs_beside_those_before_it(example: Example, tmp_path: Path) -> None:
    for one in (*example.before, example):
        skip_without_packages(one.code)
        (tmp_path / str(one.file)).write_text(one.code, encoding="utf-8")
    how: list[str] = []
    if str(example.file).startswith("test_"):
        (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        how = ["-m", "pytest", "-q", *PLUGIN, "-p", "no:cacheprovider", "-p", "no:asyncio", "--ebbpool-leaks"]
    done = python(*how, str(example.file), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), (done.stdout, done.stderr)


@pytest.mark.parametrize("name", MODULES)
def test_the_example_of_a_docstring_runs(name: str) -> None:
    skip_without_packages(f"import {name}")
    (code,) = re.findall(r"::\n\n((?:    .*\n|\n)+)", inspect.getdoc(importlib.import_module(name)) or "")
    compile(textwrap.dedent(code), name, "exec")
    if "serve" not in code:  # what serves does not end, and is on the page about servers in a form that does
        done = run_script(code)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.mark.skipif(os.name != "posix", reason="no signal stops it there")
@pytest.mark.parametrize("example", [*SERVERS, pytest.param(METRICS, id="metrics")])
def test_an_example_serves_until_it_is_told_to_stop(example: Example, tmp_path: Path) -> None:
    def answers(path: str = "", text: bytes = b"program.py") -> bool:
        assert process.poll() is None
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=TIMEOUT) as response:
                return text in response.read()
        except OSError as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()  # a pool that is full while it starts answers 503, with a body
            return False

    skip_without_packages(example.code)
    with reserved_port() as port:
        code = example.code.replace("8000", str(port))
        (tmp_path / "program.py").write_text(code, encoding="utf-8")
        command = [sys.executable, "program.py"]
        with (
            (tmp_path / "log").open("w+") as log,
            subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=log, start_new_session=True) as process,
        ):
            try:
                eventually(answers, "the example answers", 6 * TIMEOUT)
                if '"/metrics"' in code:
                    # The default limit of 256 threads, twice: any of the two processes shows both.
                    shown = functools.partial(answers, "metrics", b"} 512.0")
                    eventually(shown, "it shows the pools of both processes")
                process.terminate()
                assert process.wait(6 * TIMEOUT) == 0
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
            log.seek(0)
            assert "Traceback" not in log.read()


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 30
    assert len(FILES) >= 8
    assert SERVERS
