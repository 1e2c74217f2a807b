"""fastthreadpool's published examples, written anew from its documentation, on `ebbpool.fastthreadpool`."""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterator
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pytest
from support.common import LONG, TIMEOUT, Background, eventually, output_of
from support.fastthreadpool import stop_the_wall_clock

from ebbpool import fastthreadpool

PAGE = Path(__file__).parents[2] / "docs" / "migrating.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def worker(value: Any) -> Any:
    return value


# The README.


def test_results_of_a_map_are_in_the_done_queue() -> None:
    pool = fastthreadpool.Pool()
    pool.map(worker, range(100))
    pool.shutdown()
    assert sorted(pool.done) == list(range(100)) and not pool.failed


def test_a_map_with_a_callback() -> None:
    got: deque[int] = deque()
    pool = fastthreadpool.Pool()
    pool.map(worker, range(100), got.append)
    pool.shutdown()
    assert sorted(got) == list(range(100)) and not pool.done


def test_results_with_their_ids() -> None:
    pool = fastthreadpool.Pool(result_id=True)
    job_id1 = pool.submit(worker, "foo1")
    pool.shutdown()
    assert pool.done.popleft() == (job_id1, "foo1")


def test_the_more_complex_example() -> None:
    pool = fastthreadpool.Pool(result_id=True)
    for i in range(100):
        jobid = pool.submit(lambda *args: args, "foo1", i)
    pool.submit_first(worker, "foo2")
    cancelled = pool.cancel(jobid)
    pool.submit_later(0.01, worker, "foo3")
    pool.schedule(0.01, worker, "foo4")
    eventually(lambda: len(pool.done) >= 105)
    pool.cancel(None, True)
    pool.shutdown()
    values = [value for _, value in pool.done]
    jobs = {value[1] for value in values if isinstance(value, tuple)}
    assert jobs == set(range(99 if cancelled else 100))
    assert values.count("foo2") == values.count("foo3") == 1
    assert not pool.failed


def test_an_init_callback_that_equips_its_thread() -> None:
    def inflate(data: bytes) -> bytes:
        # fastthreadpool's own example has a decompressor from another package here.
        inflated: bytes = threading.current_thread().Z.decompress(data)  # type: ignore[attr-defined]
        return inflated

    def equip(ctx: Any) -> None:
        ctx.Z = zlib

    pool = fastthreadpool.Pool(init_callback=equip)
    for number in range(20):
        pool.submit(inflate, zlib.compress(b"x" * number))
    pool.shutdown()
    assert sorted(pool.done) == [b"x" * number for number in range(20)] and not pool.failed


def test_the_echo_server() -> None:
    listening = socket.create_server(("127.0.0.1", 0))

    def serve(size: int) -> None:
        with listening:
            while True:
                try:
                    client, _ = listening.accept()
                except OSError:
                    return
                pool.submit(echo, client, size)

    def echo(client: socket.socket, size: int) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffer = bytearray(size)
        with client:
            # fastthreadpool's own sends the whole buffer whatever has arrived, and never notices that a client left.
            while count := client.recv_into(buffer):
                client.sendall(memoryview(buffer)[:count])

    pool = fastthreadpool.Pool(8)
    pool.submit(serve, 4096)
    joined = Background(pool.wait_idle)
    clients = [socket.create_connection(listening.getsockname(), TIMEOUT) for _ in range(5)]
    for number, client in enumerate(clients):
        with client:
            client.sendall(bytes([number]) * 1000)
            received = b""
            while len(received) < 1000:
                received += client.recv(4096)
            assert received == bytes([number]) * 1000
    assert joined.still_waits()
    listening.shutdown(socket.SHUT_RDWR)
    assert joined.join() is True
    assert pool.join() is True
    assert len(pool.done) == 6 and not pool.failed


# The examples folder.


def test_simple_sum() -> None:
    data = list(range(50_000))
    pool = fastthreadpool.Pool()
    pool.map(worker, data)
    pool.shutdown()
    assert sum(pool.done) == sum(data)
    pool = fastthreadpool.Pool()
    for value in data:
        pool.submit(worker, value)
    pool.shutdown()
    assert sum(pool.done) == sum(data)


def test_pack_and_compress_and_back() -> None:
    def pack(values: list[int]) -> bytes:
        return zlib.compress(repr(values).encode())

    def unpack(packed: bytes) -> list[int]:
        return [int(number) for number in zlib.decompress(packed).decode().strip("[]").split(",")]

    data = [list(range(400)) for _ in range(100)]
    pool = fastthreadpool.Pool()
    pool.map(pack, data)
    pool.shutdown()
    packed = list(pool.done)
    assert len(packed) == 100 and not pool.failed
    pool.clear()
    pool.map(unpack, packed)
    pool.shutdown()
    assert list(pool.done) == data and not pool.failed


def test_semaphore() -> None:
    semaphore = fastthreadpool.Semaphore()
    for _ in range(1000):
        semaphore.release()
        semaphore.acquire()
    assert semaphore.value == 1


def test_a_semaphore_between_jobs() -> None:
    semaphore = fastthreadpool.Semaphore(8)
    pool = fastthreadpool.Pool()
    for value in range(10):
        pool.submit(semaphore.release if value & 1 else semaphore.acquire)
    pool.shutdown()
    assert semaphore.value == 8


def test_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    heard: list[str] = []

    def hello(text: str) -> str:
        said.append(text)
        return "World " + text

    stop_the_wall_clock(monkeypatch, begin := time.time())
    pool = fastthreadpool.Pool()
    pool.schedule(0.010, hello, "10")
    often = pool.schedule_done(0.015, hello, heard.append, "15")
    pool.submit_at(begin + LONG, 0.0, hello, "never")
    pool.submit_at(begin + 0.018, 0.0, hello, "once")
    pool.submit_at(begin + 0.019, 0.008, hello, "at an interval")
    eventually(lambda: {"10", "15", "once", "at an interval"} <= set(said))
    pool.cancel(None, often)
    before = said.count("at an interval")
    eventually(lambda: said.count("at an interval") > before + 1)
    pool.cancel(None, True)
    assert pool.shutdown() is True
    assert said.count("once") == 1 and "never" not in said
    assert set(heard) == {"World 15"} and "World 15" not in pool.done
    assert "World once" in pool.done


def test_submit_later() -> None:
    heard: deque[Any] = deque()
    pool = fastthreadpool.Pool()
    for delay in (0.010, 0.011, 0.010, 0.020):
        pool.submit_later(delay, worker, "Hallo")
    pool.submit_done_later(0.010, worker, heard.append, "Done")
    pool.submit_later(LONG, worker, "never")
    eventually(lambda: len(pool.done) == 4 and len(heard) == 1)
    pool.cancel(None, True)
    pool.shutdown()
    assert list(pool.done) == ["Hallo"] * 4 and list(heard) == ["Done"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    for number in range(5):
        folder = root / f"folder {number}" / "below"
        folder.mkdir(parents=True)
        for name in range(10):
            (folder / f"file {name}").write_bytes(os.urandom(100 + name))
    return root


def contents(root: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in root.rglob("*")}


def test_recursive_copy(tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    found: deque[tuple[str, Path | None]] = deque()

    def scan() -> None:
        for base, folders, files in os.walk(tree):
            for kind, names in (("folder", folders), ("file", files)):
                found.extend((kind, Path(base).relative_to(tree) / name) for name in names)
        found.append(("end", None))

    target.mkdir()
    over = False
    with fastthreadpool.Pool(32) as pool:
        pool.submit(scan)
        while not over or pool.pending > 0:
            try:
                kind, path = found.popleft()
            except IndexError:
                pool.wait_idle(0.001)
                continue
            if path is None:
                over = True
            elif kind == "folder":
                (target / path).mkdir()
            else:
                pool.submit(shutil.copyfile, tree / path, target / path)
    assert not pool.failed
    assert contents(target) == contents(tree)


def test_recursive_delete(tree: Path) -> None:
    def remove(path: str) -> None:
        os.chmod(path, stat.S_IWRITE)
        os.remove(path)

    folders = []
    with fastthreadpool.Pool(32) as pool:
        for base, _, files in os.walk(tree, topdown=False):
            folders.append(base)
            for name in files:
                pool.submit(remove, os.path.join(base, name))
    assert not pool.failed
    for folder in folders:
        os.rmdir(folder)
    assert not tree.exists()


# What doc/API.rst says, where it shows no code.


def test_a_pool_for_which_everything_is_set() -> None:
    done: deque[Any] = deque()
    failed: deque[Any] = deque()
    finished = threading.Event()
    pool = fastthreadpool.Pool(
        max_children=2,
        child_name_prefix="child",
        init_callback=lambda thread, number: setattr(thread, "number", number),
        init_args=(5,),
        finish_callback=finished.set,
        done_callback=done.append,
        failed_callback=lambda *entry: failed.append(entry),
        log_level=None,
        result_id=True,
        exc_stack=True,
        exc_args=True,
        done_max=10,
    )
    good = pool.submit(lambda: threading.current_thread().number)  # type: ignore[attr-defined]
    bad = pool.submit(int, "no number")
    assert pool.shutdown() is True
    assert list(done) == [(good, 5)]
    [(job_id, text, args, kwargs)] = failed
    assert (job_id, args, kwargs) == (bad, ("no number",), {}) and "ValueError" in text
    assert finished.is_set()


def test_job_functions_may_be_generator_functions() -> None:
    def countdown(number: int) -> Iterator[int]:
        while number:
            yield number
            number -= 1

    pool = fastthreadpool.Pool()
    pool.map(countdown, [3, 2])
    pool.submit(countdown, 1)
    assert sorted(pool.as_completed()) == [1, 1, 1, 2, 2, 3]
    pool.shutdown()


def test_waiting_for_results_by_their_semaphore() -> None:
    pool = fastthreadpool.Pool()
    for number in range(10):
        pool.submit(worker, number)
    got = []
    for _ in range(10):
        pool.done_cnt.acquire()
        got.append(pool.done.popleft())
    pool.shutdown()
    assert sorted(got) == list(range(10))


# The migration page.


def test_the_migration_page_shows_the_same_thing_twice() -> None:
    old, new, thread_pool, ours, standard = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert output_of(old) == output_of(new)
    assert output_of(thread_pool) == output_of(ours) == ["9 [0, 1, 4, 9, 16] [8, 9]", "[0, 1, 4, 9, 16]"]
    assert sorted(output_of(standard)) == ["ebb 3", "flood 5"]


@pytest.mark.parametrize("pool", [fastthreadpool.Pool, ThreadPool])
def test_the_migration_page_names_every_public_call(pool: type) -> None:
    text = PAGE.read_text(encoding="utf-8")
    names = [name for name in dir(pool) if not name.startswith("_") and name != "Process"]
    assert len(names) > 10
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []
