"""The monitor's socket: who is answered, what clients may do, and what becomes of its file."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.common import (
    A_MOMENT,
    FORK,
    STACKS,
    TIMEOUT,
    Background,
    Gate,
    environment,
    eventually,
    needs_fork,
    output_of,
    run_script,
)
from support.monitor import SNAPSHOT, THREAD, Talk, ask, listener

import ebbpool
from ebbpool import AdaptiveExecutor, monitor
from ebbpool.testing import no_thread_leaks

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="the platform has no Unix sockets")


@pytest.fixture
def path(short_path: Path) -> Path:
    return short_path / "m"


@pytest.fixture
def listening(path: Path) -> Iterator[monitor.Listener]:
    with monitor.listen(path) as result:
        yield result


def test_a_snapshot_is_what_the_pools_say(listening: monitor.Listener) -> None:
    def shown(**more: bool) -> Any:
        (pool,) = [each for each in ask(listening.path, SNAPSHOT | more)["pools"] if each["name"] == "web"]
        return pool

    with AdaptiveExecutor(3, "web") as pool, Gate() as gate:
        lane = pool.lane("reports", limit=1)
        gate.hold(lane)
        lane.submit(gate)
        stranger = Background(gate)
        gate.await_begun()
        snapshot = ask(listening.path)
        assert (snapshot["ebbpool"], snapshot["pid"]) == (ebbpool.__version__, os.getpid())
        assert snapshot["python"].split()[1] == sys.version.split()[0]
        assert {"MainThread", "ebbpool-monitor", stranger.thread.name} <= set(snapshot["others"])
        assert not [name for name in snapshot["others"] if name.startswith("web")], "it names the threads of no pool"
        web = shown()
        assert (web["workers"], web["max_workers"], web["running"], web["closed"]) == (1, 3, 1, False)
        assert [(each["name"], each["running"], each["queued"]) for each in web["lanes"]] == [("reports", 1, 1)]
        (task,) = web["tasks"]
        assert task["thread"].startswith("web_")
        assert task["stack"] is None
        (task,) = shown(stacks=True)["tasks"]
        assert any(text in task["stack"] for text in (("nobody opened", "_open.wait") if STACKS else ("(no stack",)))
        assert monitor.snapshot()["pools"][0].keys() == web.keys()
        pool.shutdown(wait=False)
        ending = shown()
        assert (ending["closed"], len(ending["tasks"])) == (True, 1), "it is shown while it waits for its last task"
        gate.open()
        pool.shutdown()
        assert "web" not in [each["name"] for each in ask(listening.path)["pools"]]


def test_one_odd_pool_does_not_hide_the_others(
    listening: monitor.Listener, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AdaptiveExecutor(thread_name_prefix="odd") as odd, AdaptiveExecutor(thread_name_prefix="web"):
        stats: Any = odd.stats()
        monkeypatch.setattr(odd, "stats", lambda: "nothing to see here")
        names = [each["name"] for each in ask(listening.path)["pools"]]
        monkeypatch.setattr(odd, "stats", lambda: replace(stats, last_decision=object()))
        assert ask(listening.path) == {"error": "TypeError: Object of type object is not JSON serializable"}
    assert "web" in names and "odd" not in names
    assert "the figures of pool 'odd' cannot be read" in caplog.text


@pytest.mark.parametrize(
    "line",
    [
        *(b"snapshot", b"\xff", b"[" * 60_000, b"[]", b"{}", b'{"get": "all"}', b'{"stacks": true}', b""),
        *(b'{"get": "snapshot", "stacks": 1}', b'{"get": "snapshot", "stack": true}'),
    ],
    ids=lambda line: repr(line[:30]),
)
def test_a_request_that_is_not_understood_is_told_why(listening: monitor.Listener, line: bytes) -> None:
    ((key, text),) = ask(listening.path, line + b"\n").items()
    assert key == "error"
    assert text.startswith('a request must be {"get": "snapshot"} on one line, ') and str(line)[:8] in text


def test_the_newline_of_a_request_may_be_missing(listening: monitor.Listener) -> None:
    with Talk(listening.path) as talk:
        talk.socket.sendall(json.dumps(SNAPSHOT).encode())
        talk.socket.shutdown(socket.SHUT_WR)
        assert "pools" in talk.hear()


def test_ten_megabytes_without_a_newline_are_cut_off(listening: monitor.Listener) -> None:
    with Talk(listening.path) as talk:
        with pytest.raises(ConnectionError):
            talk.socket.sendall(b"x" * 10_000_000)
        assert "pools" in ask(listening.path)


@pytest.mark.parametrize("asked", [b"", b'{"get": ', json.dumps(SNAPSHOT).encode() + b"\n"], ids=repr)
def test_a_client_that_does_not_ask_or_does_not_read_holds_nobody_up(
    listening: monitor.Listener, asked: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(["x" * 10_000_000] * asked.endswith(b"\n"))
    monkeypatch.setattr(listener, "TIMEOUT", A_MOMENT)
    monkeypatch.setattr(listener, "snapshot", lambda stacks: {"pools": next(answers, "next")})
    with Talk(listening.path) as silent:
        silent.socket.sendall(asked)
        assert ask(listening.path) == {"pools": "next"}
        assert not list(answers)


def test_an_accept_that_fails_is_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [OSError(24, "Too many open files")]
    accept = socket.socket.accept

    def failing_once(self: socket.socket) -> Any:
        if failures:
            raise failures.pop()
        return accept(self)

    monkeypatch.setattr(listener, "TIMEOUT", 0.01)
    monkeypatch.setattr(socket.socket, "accept", failing_once)
    with monitor.listen(path):
        assert "pools" in ask(path)
    assert not failures
    assert "cannot accept: [Errno 24]" in caplog.text


def test_the_file_never_has_a_mode_that_lets_others_in(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    rename = os.rename

    def look(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        found = os.lstat(source, dir_fd=src_dir_fd), os.fstat(src_dir_fd)
        modes.extend(stat.S_IMODE(each.st_mode) for each in found)
        rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "rename", look)
    before = os.umask(0)
    try:
        with monitor.listen(path):
            assert modes == [0o600, 0o700]
            assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_links_in_the_place_of_its_directory_lead_nowhere(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is another user's, who may put them there at any time."""
    folder, kept = short_path / "theirs", short_path / "kept" / "m"
    for each in (folder, kept.parent):
        each.mkdir()
    kept.write_text("kept")
    chmod = os.chmod

    def swap(*args: Any, **options: Any) -> None:
        chmod(*args, **options)
        (private,) = folder.iterdir()
        private.rename(short_path / "away")
        private.symlink_to(kept.parent)

    monkeypatch.setattr(os, "chmod", swap)
    with monitor.listen(folder / "m") as made:
        assert stat.S_ISSOCK(os.lstat(made.path).st_mode)
        # So may they later.
        folder.rename(short_path / "theirs too")
        folder.symlink_to(kept.parent)
    assert kept.read_text() == "kept"


@pytest.mark.parametrize(("user", "fits"), [(4000, True), (0, True), (4001, False)])
def test_the_other_end_is_checked(
    listening: monitor.Listener, user: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4000)
    monkeypatch.setattr(listener, "peer", lambda _: (1, user))
    with contextlib.suppress(ConnectionError):
        assert ("pools" if fits else "error") in ask(listening.path)


def test_closing_ends_the_thread_and_removes_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "TIMEOUT", TIMEOUT)
    with no_thread_leaks(grace=0):
        listening = monitor.listen(path)
        assert "pools" in ask(path)
        for call in [Background(listening.close) for _ in range(8)]:
            call.join()
        listening.close()
    assert list(path.parent.iterdir()) == []
    assert repr(listening) == f"<Listener on {str(path)!r}, closed>"


def test_a_listener_that_is_not_closed_is_a_leak_unless_the_environment_asked_for_it(path: Path) -> None:
    with contextlib.ExitStack() as stack:
        with pytest.raises(AssertionError, match=THREAD), no_thread_leaks(grace=0):
            stack.enter_context(monitor.listen(path))
        with no_thread_leaks(grace=0):
            stack.enter_context(listener.Listener(path.with_name("other"), resident=True))


def test_a_path_that_is_taken_is_refused_and_that_of_a_dead_process_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with monitor.listen(path):
        with pytest.raises(OSError, match=rf"cannot listen on '{path}': a process.* is already listening there"):
            monitor.listen(path)
        assert "pools" in ask(path)
    path.write_text("mine")
    with pytest.raises(FileExistsError, match=rf"cannot listen on '{path}': there is a file that is not a socket"):
        monitor.listen(path)
    assert path.read_text() == "mine"
    assert list(path.parent.iterdir()) == [path]


def test_what_dead_processes_have_left_at_paths_of_the_same_pattern_is_removed(short_path: Path) -> None:
    left, others = [short_path / "m1.sock", short_path / "m22.sock"], [short_path / "m.sock", short_path / "m3.socket"]
    for path in left + others:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    (short_path / "m4.sock").write_text("mine")
    with monitor.listen(short_path / "m5.sock") as alive, monitor.listen(short_path / "m{pid}.sock") as listening:
        kept = {*others, short_path / "m4.sock", Path(alive.path), Path(listening.path)}
        assert {*short_path.iterdir()} == kept
        assert "pools" in ask(alive.path)


@pytest.mark.parametrize(
    ("value", "kind", "reason"),
    [
        (7, TypeError, "path must be a string or a path, not 7"),
        *((bad, ValueError, f"path must name a file, not {bad!r}") for bad in ("", "/x/\ud800", "a\0b")),
        ("/proc/no/such/folder", OSError, "cannot listen on '/proc/no/such/folder': No such file or directory"),
        ("/tmp/" + "x" * 100, OSError, "': AF_UNIX path too long"),
    ],
)
def test_a_bad_path_is_named(value: Any, kind: type[Exception], reason: str) -> None:
    with pytest.raises(kind, match=re.escape(reason)):
        monitor.listen(value)


def test_the_process_exits_as_ever_and_what_hangs_at_its_exit_can_be_looked_at(path: Path) -> None:
    script = f"""
    import sys
    from ebbpool import AdaptiveExecutor, monitor
    monitor.listen({str(path)!r})
    pool = AdaptiveExecutor(1, "late")
    pool.submit(sys.stdin.readline)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment()) as process:
        eventually(path.exists, "it listens", 6 * TIMEOUT)
        eventually(lambda: any(pool["running"] for pool in ask(path)["pools"]))
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(6 * TIMEOUT) == 0
    assert list(path.parent.iterdir()) == []


LOOK = (
    FORK
    + """
    import json, socket
    from ebbpool import monitor
    from support.monitor import answer

    def pid(path):
        talk = socket.socket(socket.AF_UNIX)
        talk.settimeout(10)
        talk.connect(path)
        talk.sendall(b'{"get": "snapshot"}\\n')
        return json.loads(talk.makefile().readline())["pid"]
"""
)


@needs_fork
def test_a_forked_child_leaves_the_socket_to_its_parent(path: Path) -> None:
    script = f"""
    path = {str(path)!r}
    with monitor.listen(path) as listening:
        parent, (viewer, attached) = os.getpid(), socket.socketpair()
        threading.Thread(target=answer, args=[attached], daemon=True).start()
        assert viewer.send(b"?\\n") and viewer.recv(1)
        def check():
            print(pid(path) == parent, listening, [thread.name for thread in threading.enumerate()], attached.fileno())
            listening.close()
        print(pid(path) == parent, in_child(check), pid(path) == parent)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.read(reading, 1)
            os._exit(0)
    try:
        pid(path)
    except OSError as error:
        print(type(error).__name__)
    os.write(writing, b".")
    os.waitpid(child, 0)
    """
    closed = f"<Listener on {str(path)!r}, closed>"
    assert output_of(script, LOOK) == [f"True {closed} ['MainThread'] -1", "True 0 True", "FileNotFoundError"]


@needs_fork
@pytest.mark.skipif(sys.implementation.name == "pypy", reason="a thread that is started in a fork hook may crash PyPy")
def test_a_forked_child_listens_on_a_path_of_its_own(short_path: Path) -> None:
    script = f"""
    pool = AdaptiveExecutor()
    with monitor.listen({str(short_path / "{pid}")!r}) as listening:
        path, parent = listening.path, os.getpid()
        def check():
            print(pid(listening.path) == os.getpid(), pid(path) == parent, listening.path == path)
            listening.close()
        print(in_child(check))
        print(pid(path) == parent)
    pool.shutdown()
    """
    assert output_of(script, LOOK) == ["True True False", "0", "True"]
    assert list(short_path.iterdir()) == []


@needs_fork
def test_the_environment_may_name_a_path_and_counts_in_forked_children_too(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EBBPOOL_MONITOR", str(short_path / "{pid}"))
    script = f"""
    def check():
        pools = AdaptiveExecutor(), AdaptiveExecutor()
        print(str(os.getpid()) in os.listdir({str(short_path)!r}))
    check()
    print(in_child(check))
    """
    assert output_of(script, FORK) == ["True", "True", "0"]


def test_a_bad_path_in_the_environment_is_one_log_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBBPOOL_MONITOR", "/no/such/folder/m")
    done = run_script("from ebbpool import AdaptiveExecutor; AdaptiveExecutor(), AdaptiveExecutor(); print('runs')")
    assert (done.returncode, done.stdout) == (0, "runs\n")
    (line,) = done.stderr.splitlines()
    assert line == (
        "EBBPOOL_MONITOR=/no/such/folder/m is not used: [Errno 2] cannot listen on '/no/such/folder/m': "
        "No such file or directory"
    )


def test_nothing_of_it_is_imported_unasked() -> None:
    script = """
    import sys
    from ebbpool import AdaptiveExecutor
    AdaptiveExecutor().submit(int).result()
    print(sorted(name for name in sys.modules if "_top" in name or name in ("ebbpool.monitor", "rich", "socket")))
    print([name for name in sys.modules if name.endswith("listener")])
    """
    assert output_of(script) == ["[]", "[]"]
