"""The demo: its parts with the standard library alone, and all of it where its packages are installed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from support.demo import canned, ok

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.demo import control, load, measure, plan, upstream
from benchmarks.demo.answers import Answers, words_in
from benchmarks.demo.client import BadResponse, Client, Head, parse_head
from benchmarks.demo.corpus import Library, NoFullTextSearch, build_index, encode, sha256_of, source_files

NEEDED = ("starlette", "uvicorn", "rich", "matplotlib")
SOURCES = {
    "a.py": b"import socket\nsocket.timeout\n",
    "b.py": b"Socket = timeout_error  # not the word timeout_ alone\nTimeOut\n",
    "c.py": b"time out socket socket_timeout\n",
    "pkg/d.py": "größe = 'socket timeout'\n".encode(),
    "pkg/e.py": b"latin-1 \xe9socket timeout\xff\n",
    "pkg/f.py": b"nul\0socket\0timeout\n",
    "empty.py": b"",
}
TRICKY = ("socket timeout", "SOCKET", "timeout_error", "socket_timeout", "nul", "nowhere")


def ignore() -> None:
    """Progress that nobody watches."""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder of small source files, with some that are not to be found."""
    root = tmp_path / "sources"
    for name, content in SOURCES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (root / "site-packages").mkdir()
    (root / "site-packages" / "installed.py").write_bytes(b"socket timeout")
    (root / "notes.txt").write_bytes(b"socket timeout")
    return root


@pytest.fixture
def library(tree: Path, tmp_path: Path) -> Library:
    """The same folder, indexed by SQLite."""
    database = tmp_path / "index.sqlite"
    try:
        build_index(database, tree, source_files(tree), ignore)
    except NoFullTextSearch as lacking:
        pytest.skip(str(lacking))
    return Library(database, tree)


@pytest.fixture
def answers(tree: Path) -> Answers:
    """What plain Python finds in that folder."""
    return Answers(tree, source_files(tree), TRICKY, ignore)


def test_installed_packages_are_not_sources(tree: Path) -> None:
    assert source_files(tree) == sorted(SOURCES)


def test_a_limit_spreads_over_all_sources(tree: Path) -> None:
    assert source_files(tree, 3) == ["a.py", "c.py", "pkg/d.py"]
    assert source_files(tree, 100) == sorted(SOURCES)


def test_the_index_tells_of_its_progress(tree: Path, tmp_path: Path, library: Library) -> None:
    steps: list[None] = []
    build_index(tmp_path / "another.sqlite", tree, ["a.py", "b.py"], lambda: steps.append(None))
    assert len(steps) == 2


def test_words() -> None:
    assert words_in("Größe _x1-y\0Z".encode()) == {"größe".encode(), b"_x1", b"y", b"z"}


def test_expected_answers_are_right(answers: Answers, tree: Path) -> None:
    found = ["a.py", "b.py", "pkg/d.py", "pkg/f.py"]
    assert json.loads(answers.search("socket timeout")) == {"query": "socket timeout", "files": found}
    together = hashlib.sha256(b"".join(SOURCES[name] for name in found)).hexdigest()
    assert json.loads(answers.digest("socket timeout")) == {
        "query": "socket timeout",
        "found": 4,
        "sha256": together,
    }
    assert json.loads(answers.verify("a.py"))["sha256"] == hashlib.sha256(SOURCES["a.py"]).hexdigest()
    assert answers.useful() == [query for query in TRICKY if query != "nowhere"]


@pytest.mark.parametrize("query", TRICKY)
def test_sqlite_and_plain_python_agree(library: Library, answers: Answers, query: str) -> None:
    assert library.search(query) == answers.search(query)
    assert library.digest(query) == answers.digest(query)


def test_verify_compares_with_the_store(library: Library, answers: Answers, tree: Path) -> None:
    assert library.verify("a.py", lambda path: sha256_of(tree / path)) == answers.verify("a.py")
    assert json.loads(library.verify("a.py", lambda _: "another"))["same"] is False


@pytest.mark.counts_references
def test_a_threads_connection_is_closed_with_its_thread(library: Library) -> None:
    def connection_of_thread() -> sqlite3.Connection:
        library.find("socket")
        return cast(sqlite3.Connection, library._local.session.connection)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        connection = pool.submit(connection_of_thread).result()
        assert pool.submit(library.find, "nul").result() == ["pkg/f.py"]
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


TINY = plan.Scale(clients=5, rate=10.0, steady=3.0, quiet=0.5, files=4)


def test_a_plan_is_the_same_every_time(answers: Answers) -> None:
    first = plan.make_plan(TINY, answers)
    assert first == plan.make_plan(TINY, answers)
    other = plan.Scale(clients=5, rate=10.0, steady=3.0, quiet=0.5, files=4, seed=21)
    assert first.requests != plan.make_plan(other, answers).requests


def test_a_plan_survives_being_saved(answers: Answers, tmp_path: Path) -> None:
    made = plan.make_plan(TINY, answers)
    made.save(tmp_path / "plan.json")
    assert plan.Plan.load(tmp_path / "plan.json") == made


def test_a_plan_has_a_steady_phase_a_quiet_one_and_a_burst(answers: Answers) -> None:
    made = plan.make_plan(TINY, answers)
    burst = [request for request in made.requests if request.phase == "burst"]
    assert sorted(request.client for request in burst) == list(range(TINY.clients))
    assert {request.at for request in burst} == {TINY.burst_at}
    steady = [request for request in made.requests if request.phase == "steady"]
    assert steady
    assert all(0.0 <= request.at < TINY.steady for request in steady)
    for client in range(TINY.clients):
        times = [request.at for request in steady if request.client == client]
        assert all(later - at >= plan.PAUSE - 0.001 for at, later in pairwise(times))


def test_a_plan_knows_the_answer_to_each_request(answers: Answers) -> None:
    made = plan.make_plan(TINY, answers)
    for request in made.requests:
        answer = json.loads(made.answers[request.answer])
        key = {"search": "files", "digest": "found", "verify": "stored"}[request.kind]
        assert request.target.startswith(f"/{request.kind}?")
        assert key in answer


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n", Head(200, 12, True)),
        (b"HTTP/1.1 500\r\ncontent-length:0\r\nConnection: Close\r\n\r\n", Head(500, 0, False)),
    ],
)
def test_parse_head(head: bytes, expected: Head) -> None:
    assert parse_head(head) == expected


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\nContent-Length: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"\r\n\r\n",
    ],
)
def test_parse_head_refuses(head: bytes) -> None:
    with pytest.raises(BadResponse):
        parse_head(head)


def test_client_keeps_its_connection_until_told_otherwise() -> None:
    async def go() -> list[int]:
        connections: list[int] = []
        replies = {
            "/a": [ok(b"abc")[:9], ok(b"abc")[9:]],
            "/close": [ok(b"bye", extra="Connection: close\r\n")],
            "/500": [ok(b"oh", "500 Internal Server Error")],
        }
        async with canned(replies, connections) as port:
            client = Client(port)
            assert await client.get("/a") == (200, b"abc")
            assert await client.get("/500") == (500, b"oh")
            assert await client.get("/close") == (200, b"bye")
            assert len(connections) == 1
            assert await client.get("/a") == (200, b"abc")
            client.close()
        return connections

    assert len(asyncio.run(go())) == 2


class QuietLink:
    """A lead with nobody at the other end."""

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []

    async def send(self, **message: Any) -> None:
        self.said.append(message)


def test_every_answer_is_judged() -> None:
    scale = plan.Scale(clients=2, steady=0.0, quiet=0.0, patience=30.0)
    targets = ("/right", "/wrong", "/500", "/gone", "/right")
    requests = [
        plan.Request(client, 0.0, "burst", "search", target, 0)
        for client, target in zip((0, 1, 0, 1, 0), targets, strict=True)
    ]
    body = encode({"files": ["a.py"]})
    replies = {
        "/right": [ok(body)],
        "/wrong": [ok(body.replace(b"a.py", b"b.py"))],
        "/500": [ok(body, "500 Internal Server Error")],
        "/gone": [],
    }
    link = QuietLink()

    async def go() -> list[load.Row]:
        async with canned(replies, []) as port:
            planned = plan.Plan(scale, requests, [body.decode()], {})
            return await load.generate(port, planned, cast(control.Link, link))

    rows = asyncio.run(go())
    assert link.said == [{"event": "started"}]
    assert [row[0] for row in rows] == [0, 1, 2, 3, 4]
    assert all(0.0 <= sent <= done and late >= 0.0 for _, sent, done, late, _ in rows)
    said = [row[4] for row in rows]
    assert said[0] == said[4] == ""
    assert said[1].startswith("wrong: ")
    assert said[2].startswith("error: status 500")
    assert said[3].startswith("error: IncompleteReadError")


def test_an_answer_that_does_not_come_is_an_error() -> None:
    async def go() -> list[load.Row]:
        async with canned({"/never": [b"HTTP/1.1 200 OK\r\n"]}, []) as port:
            scale = plan.Scale(clients=1, steady=0.0, quiet=0.0, patience=0.1)
            request = plan.Request(0, 0.0, "burst", "search", "/never", 0)
            planned = plan.Plan(scale, [request], ["{}"], {})
            return await load.generate(port, planned, cast(control.Link, QuietLink()))

    ((_, _, _, _, said),) = asyncio.run(go())
    assert said == "error: not answered in time"


def test_the_store_takes_its_time_and_answers() -> None:
    delays = {n: upstream.delay(str(n)) for n in range(500)}
    assert all(0.05 <= delay <= 0.3 for delay in delays.values())
    assert all(1.0 <= upstream.delay(f"{upstream.SLOW}{n}") <= 1.1 for n in range(500))
    assert len(set(delays.values())) > 100
    quickest = str(min(delays, key=delays.__getitem__))

    async def go() -> tuple[str, str]:
        store = await upstream.serve({"a.py": "abc"})
        port = store.sockets[0].getsockname()[1]
        known = await asyncio.to_thread(upstream.fetch, port, quickest, "a.py")
        unknown = await asyncio.to_thread(upstream.fetch, port, quickest, "b.py")
        store.close()
        return known, unknown

    assert asyncio.run(go()) == ("abc", "unknown")


def with_load_child(tmp_path: Path, use: Callable[[control.Child], Awaitable[None]]) -> int | None:
    """Start the load generator's process, hand it to `use`, let go of it, and return its exit status."""
    plan.Plan(TINY, [], [], {}).save(tmp_path / "plan.json")
    arguments = ("--plan", str(tmp_path / "plan.json"), "--out", str(tmp_path / "out.json"))
    children: list[control.Child] = []

    async def go() -> None:
        async with control.child("benchmarks.demo.load", *arguments, log=tmp_path / "log") as child:
            children.append(child)
            await use(child)

    try:
        asyncio.run(go())
    except asyncio.CancelledError:
        pass
    return children[0]._process.returncode


def test_a_child_leaves_when_it_is_let_go(tmp_path: Path) -> None:
    async def use(child: control.Child) -> None:
        assert (await child.expect("its port", 30.0))["event"] == "store"

    assert with_load_child(tmp_path, use) == 0


def test_a_child_leaves_when_its_parent_is_cancelled(tmp_path: Path) -> None:
    async def use(child: control.Child) -> None:
        await child.expect("its port", 30.0)
        raise asyncio.CancelledError

    assert with_load_child(tmp_path, use) == 0


def test_a_child_that_is_silent_is_named(tmp_path: Path) -> None:
    async def use(child: control.Child) -> None:
        await child.expect("its port", 30.0)
        with pytest.raises(control.ChildFailed, match=r"no sign of life within 0\.01 s"):
            await child.expect("sign of life", 0.01)

    assert with_load_child(tmp_path, use) == 0


def test_a_child_that_does_not_start_tells_why(tmp_path: Path) -> None:
    async def go() -> None:
        async with control.child("benchmarks.demo.load", log=tmp_path / "log"):
            raise AssertionError("it started")

    with pytest.raises(control.ChildFailed, match="arguments are required"):
        asyncio.run(go())


def test_without_its_packages_the_demo_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.demo import __main__ as entry

    monkeypatch.setattr(entry, "NEEDED", ("json", "a_package_that_is_not_there"))
    assert entry.main() == 1
    assert "needs a_package_that_is_not_there:" in capsys.readouterr().err


@pytest.mark.timeout(200)
def test_the_whole_demo_in_little(tmp_path: Path) -> None:
    lacking = [name for name in NEEDED if find_spec(name) is None]
    if lacking:
        pytest.skip(f"the demo's packages are not installed: {', '.join(lacking)}")
    out, temporary = tmp_path / "report", tmp_path / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.demo", "--quick", "--out", str(out)],
        cwd=control.ROOT,
        env={**os.environ, "TMPDIR": str(temporary), "TEMP": str(temporary), "TMP": str(temporary)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=190,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    cases = ["asyncio", "fastapi"] if find_spec("fastapi") else ["asyncio"]
    assert ("FastAPI is not installed here" in done.stdout) == (len(cases) == 1)
    suffixes = (".json", ".png", ".svg", ".txt")
    assert sorted(path.name for path in out.iterdir()) == [case + suffix for case in cases for suffix in suffixes]
    assert list(temporary.iterdir()) == []
    for case in cases:
        check_report(out / case, {"asyncio": POOLS, "fastapi": SIDES}[case], done.stdout)


POOLS = ["ThreadPoolExecutor()", "AdaptiveExecutor()", "ThreadPoolExecutor(256)"]
SIDES = ["stock", "256 tokens", "ebbpool.anyio.install()"]


def check_report(stem: Path, names: list[str], said: str) -> None:
    """Look at what one case left and printed."""
    assert stem.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in stem.with_suffix(".svg").read_text(encoding="utf-8")
    contenders = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))["contenders"]
    assert [contender["name"] for contender in contenders] == names
    asked = [[row[:3] for row in contender["requests"]["rows"]] for contender in contenders]
    assert asked[0]
    assert asked[0] == asked[1] == asked[2]
    problem = measure.Outcome._fields.index("problem")
    assert all(row[problem] == "" for contender in contenders for row in contender["requests"]["rows"])
    summaries = [contender["summary"] for contender in contenders]
    assert all(summary["peak_threads"] > 0 and summary["problems"] == 0 for summary in summaries)
    assert f"All {sum(summary['requests'] for summary in summaries):,} answers were right." in said
    table = stem.with_suffix(".txt").read_text(encoding="utf-8")
    assert all(f"{summary['requests']:,}/{summary['requests']:,}" in table for summary in summaries)
