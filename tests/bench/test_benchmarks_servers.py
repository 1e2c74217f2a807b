"""The servers of `benchmarks/`, what loads them, and the questions about them on tiny sizes."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support.benchmark import ROOT, importable, talking
from support.common import A_MOMENT, TIMEOUT, Boom, Gate, all_end, eventually

import ebbpool
from benchmarks.engine import runner
from benchmarks.engine.model import Settings, load_question
from benchmarks.load import ab
from benchmarks.load.reconnecting import Reconnecting
from benchmarks.peers.peer import Peer
from benchmarks.peers.table import BY_NAME
from benchmarks.servers import serving, tcp

OURS = "" if ebbpool.COMPILED else "-pure"
PROC = Path("/proc").exists()
ASKED = [
    ("server_sizes", peer, {"bytes": size})
    for peer in ("tcp-threading", "tcp-bare-thread", f"tcp-ebbpool{OURS}")
    for size in (0, 2_096_128)
] + [
    ("waiting", peer, {"handler": handler})
    for peer in ("tcp-gevent", f"tcp-ebbpool{OURS}")
    for handler in ("sleeps 5 s", "sleeps 10 ms")
]
TINY: dict[str, dict[str, Any]] = {
    "server_sizes": {"clients": 2, "warm_up": 0.0, "seconds": 2.0},
    "waiting": {
        "clients": 4,
        "requests": 8,
        "most_times": 200.0,
        "seconds": {"sleeps 5 s": 0.02, "sleeps 10 ms": 0.001},
        "ab_requests": 12,
        "repeats": 2,
        "period": 0.005,
    },
}
AB = """\
This is ApacheBench, Version 2.3 <$Revision: 1903618 $>

Document Path:          /
Document Length:        6 bytes

Concurrency Level:      4
Time taken for tests:   0.502 seconds
Complete requests:      2000
Failed requests:        7
   (Connect: 0, Receive: 3, Length: 4, Exceptions: 0)
Non-2xx responses:      5
Total transferred:      178000 bytes
HTML transferred:       11976 bytes
Requests per second:    3984.06 [#/sec] (mean)
Time per request:       1.810 [ms] (mean)
Transfer rate:          192.10 [Kbytes/sec] received

Percentage of the requests served within a certain time (ms)
  50%      1
  99%     21
 100%     33 (longest request)
"""


def needs_ab() -> None:
    if shutil.which("ab") is None:
        pytest.skip("ab is not installed")


def listening(**programs: tuple[str, ...]) -> Peer:
    return Peer("made-up", "made up", listens=programs)


@contextmanager
def replying(*replies: bytes | None, after: threading.Event | None = None) -> Iterator[int]:
    """Yield the port of a server that sends one reply after the other, and resets the connection on None.

    After the last reply it sends that one again and again. It begins when `after` is set.
    """
    numbers = itertools.count()

    def talk(connection: socket.socket) -> None:
        if after is not None:
            after.wait(TIMEOUT)
        with connection, suppress(ConnectionError):
            reply = replies[min(next(numbers), len(replies) - 1)]
            if reply is None:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                connection.sendall(reply)

    with talking(talk) as port:
        yield port


def refuses(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize(("name", "peer", "variant"), ASKED)
def test_measures_what_its_columns_show(name: str, peer: str, variant: dict[str, Any]) -> None:
    importable(BY_NAME[peer])
    question = load_question(f"benchmarks.{name}")
    assert variant in question.variants(BY_NAME[peer], Settings())
    if variant.get("handler") == "sleeps 10 ms":
        needs_ab()
    samples = question.measure(BY_NAME[peer], variant | TINY[name])
    columns = {column.metric for column in question.columns}
    assert set(samples) <= columns
    if name == "server_sizes":
        assert columns - set(samples) <= {"cpu"}  # it may have been less than a tick
    assert all(values and all(math.isfinite(value) for value in values) for values in samples.values())
    assert samples["errors"] == [0]
    assert min(samples["rate"]) > 0
    assert samples.get("unanswered", [0]) == [0]
    assert samples["threads"][0] >= (2 if PROC else 0)
    if "share" in samples:
        assert 0 < samples["share"][0] <= 100


@pytest.mark.parametrize("peer", ["stdlib", f"ebbpool{OURS}"])
@pytest.mark.parametrize("stack", ["default", "256 KiB"])
def test_measures_the_memory_of_workers(peer: str, stack: str) -> None:
    usual = threading.stack_size()
    # In a fresh process: this one may have room left from threads of before.
    answer = runner.run_cell(
        load_question("benchmarks.stacks"), BY_NAME[peer], {"waiting": 6, "stack": stack}, None, 4 * TIMEOUT
    )
    assert threading.stack_size() == usual
    if answer["status"] == "missing":
        pytest.skip(answer["reason"])
    assert answer["status"] == "ok", answer
    samples = answer["samples"]
    assert samples["virtual"][0] > samples["resident"][0] >= 0
    assert samples["virtual_all"][0] > samples["resident_all"][0] > 0


@pytest.mark.parametrize("way", tcp.WAYS)
def test_every_way_gives_the_right_reply(way: str) -> None:
    if way == "gevent":
        pytest.importorskip("gevent")
    command = ("benchmarks.servers.tcp", way, "--workers", "3")
    peer = listening(writes=(*command, "--bytes"), sleeps=(*command, "--sleep"))
    with serving.serving(peer, "writes", "100000") as server:
        with Reconnecting(server.port, 5, 100_000) as clients:
            replies = clients.ask(20, TIMEOUT, server.cpu_seconds)
        assert (replies.count, replies.errors, replies.unanswered) == (20, {}, 0)
    with (
        serving.serving(peer, "sleeps", "0.001") as server,
        socket.create_connection(("127.0.0.1", server.port), TIMEOUT) as client,
    ):
        client.sendall(tcp.REQUEST[:-2])
        client.settimeout(A_MOMENT)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(TIMEOUT)
        client.sendall(tcp.REQUEST[-2:])
        assert b"".join(iter(lambda: client.recv(4096), b"")) == tcp.RESPONSE


class Pooled(tcp.Rule2008Server):
    """Its requests are numbers, and what a worker does with them is wait at a gate."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(("127.0.0.1", 0), tcp._handler(lambda _: None), bind_and_activate=False)
        self.gate = gate

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self.gate(request)


def test_the_rule_of_2008() -> None:
    with Gate() as gate, Pooled(gate) as server:
        server.start_pool(1, 3, 1)
        server.process_request(0, None)
        gate.await_begun()
        for number in (1, 2, 3):
            server.process_request(number, None)
        assert gate.nobody_begins()
        server.process_request(4, None)  # the fourth that waits
        gate.await_begun()
        server.process_request(5, None)
        gate.await_begun()
        for number in range(6, 16):
            server.process_request(number, None)  # three workers are the most
        assert gate.nobody_begins()
        gate.open()
        gate.await_begun(13)
        assert gate.peak == 3
        eventually(lambda: server._workers == 1, "all but the one spare worker leave")
        server._spare = -1
        server.process_request(16, None)
        assert all_end(gate.threads)


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [(b"toolong", "too many bytes"), (b"sho", "3 bytes"), (None, "ConnectionResetError"), (b"wrong!", "wrong reply")],
)
def test_a_wrong_reply_is_counted(wrong: bytes | None, kind: str) -> None:
    start = b"rig" if wrong == b"wrong!" else b""
    with replying(b"right!", wrong, b"right!") as port, Reconnecting(port, 2, 6, start=start) as clients:
        replies = clients.ask(6, TIMEOUT, lambda: 0.0)
    assert (replies.count, dict(replies.errors), replies.unanswered) == (5, {kind: 1}, 0)


def test_who_is_refused_gives_up() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with Reconnecting(bound.getsockname()[1], 4, 6) as clients:
            replies = clients.load(0.0, TIMEOUT, 0.0, lambda: 0.0)
    assert replies.count == 0
    assert replies.errors["ConnectionRefusedError"] >= 1_000
    assert replies.seconds < TIMEOUT


def test_who_is_never_answered_is_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with Reconnecting(port, 3, 6) as clients:
            assert clients.ask(3, 0.05, lambda: 0.0).unanswered == 3
        with Reconnecting(port, 3, 6) as clients:
            replies = clients.load(0.0, 0.02, 0.02, lambda: 0.0)
        assert (replies.count, replies.unanswered) == (0, 3)


def test_load_counts_only_its_own_seconds() -> None:
    watched = iter([3.0, 5.5])
    with replying(b"right!") as port, Reconnecting(port, 3, 6) as clients:
        replies = clients.load(0.05, 2.0, TIMEOUT, lambda: next(watched))
    assert replies.count > 0
    assert 2.0 <= replies.seconds < TIMEOUT
    assert (replies.watched_seconds, replies.errors, replies.unanswered) == (2.5, {}, 0)


def test_what_comes_after_the_load_is_not_counted() -> None:
    looks, over = list[float](), threading.Event()

    def watch() -> float:
        looks.append(0.0)
        if len(looks) == 2:  # the seconds that count are over
            over.set()
        return 0.0

    with replying(b"right!", after=over) as port, Reconnecting(port, 3, 6) as clients:
        replies = clients.load(0.0, 0.02, TIMEOUT, watch)
    assert (replies.count, replies.errors, replies.unanswered) == (0, {}, 0)


CHILD = """
import socket, threading, time
listener = socket.create_server(("127.0.0.1", 0))
while time.process_time() < 0.05:
    pass
print(listener.getsockname()[1], flush=True)
threading.Event().wait()
"""
PARENT = f"""
import subprocess, sys
from benchmarks.servers import serving
serving.die_with_parent()
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE)
serving.announce(int(child.stdout.readline()))
child.wait()
"""


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Peer:
    """A server whose port is a child's."""
    (tmp_path / "parent_of_one.py").write_text(PARENT)
    inherited = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *([inherited] if inherited else [])]))
    return listening(family=("parent_of_one",))


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="no process groups here")
def test_the_whole_family_is_counted_and_ended(parent: Peer) -> None:
    with pytest.raises(Boom), serving.serving(parent, "family") as server:
        if PROC:
            assert len(server.family()) == 2
            assert server.memory(family=True) > server.memory() > 0
            assert server.virtual(family=True) > server.virtual() > server.memory()
            assert server.threads() == 2
            assert server.threads(family=True) == 3
            eventually(lambda: server.cpu_seconds(family=True) > server.cpu_seconds(), "the child's time counts")
            with serving.Watch(server, family=True) as watch:
                eventually(lambda: watch.threads == 3)
            assert watch.memory >= server.memory()
        raise Boom
    eventually(lambda: refuses(server.port), "the child is gone")
    assert (server.memory(), server.threads(), server.cpu_seconds()) == (0, 0, 0.0)


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="no process groups here")
def test_a_server_ends_with_its_parent(parent: Peer) -> None:
    command = [sys.executable, "-m", *parent.listens["family"]]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        port = int(child.stdout.readline())
        child.stdin.close()
        child.wait(TIMEOUT)
    eventually(lambda: refuses(port), "the child is gone")


def test_a_server_that_does_not_start() -> None:
    with pytest.raises(RuntimeError, match="status 3"), serving.running(["-c", "raise SystemExit(3)"]):
        pass


def test_what_ab_reports() -> None:
    found = ab.parse_ab(AB, 0.25)
    assert found == ab.Ab(2000, 7, 5, 11_976, 0.502, 3984.06, {50: 1.0, 99: 21.0, 100: 33.0}, 0.25)
    assert found.errors(6) == 12
    assert ab.parse_ab(AB.replace("Non-2xx responses:      5\n", "")).non_2xx == 0


@pytest.mark.parametrize(
    ("body_bytes", "errors"), [("12000", 0), ("11976", 4), ("11975", 5), ("0", 2000), ("13000", 167)]
)
def test_bytes_that_ab_does_not_miss(body_bytes: str, errors: int) -> None:
    clean = AB.replace("Failed requests:        7", "Failed requests:        0").replace(
        "responses:      5", "responses: 0"
    )
    assert ab.parse_ab(clean.replace("11976", body_bytes)).errors(6) == errors


@pytest.mark.parametrize("name", ["Complete requests", "Failed requests", "Requests per second", "HTML transferred"])
def test_what_ab_does_not_report(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        ab.parse_ab(AB.replace(name, "Something else"))


def scripted_ab(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    run: Callable[..., Any] = subprocess.run
    monkeypatch.setattr(shutil, "which", lambda name, **others: name)
    monkeypatch.setattr(
        subprocess, "run", lambda command, **others: run([sys.executable, "-c", script, *command[1:]], **others)
    )


def test_ab_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted_ab(monkeypatch, "raise SystemExit('it broke')")
    with pytest.raises(RuntimeError, match="status 1: it broke"):
        ab.ab(1, "/", requests=1, concurrency=1)
