"""`top` beside a process that answers, is stuck, ends, or is none of ours; finding a process; attaching to it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support.common import STACKS, TIMEOUT, Background, Gate, environment, eventually, python
from support.monitor import client, processes, run

import ebbpool
from ebbpool import AdaptiveExecutor, monitor
from ebbpool.__main__ import main

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="the platform has no Unix sockets")
needs_proc = pytest.mark.skipif(not os.path.exists("/proc/net/unix"), reason="only Linux tells who listens")
needs_rich = pytest.mark.skipif(importlib.util.find_spec("rich") is None, reason="rich is not installed")


class Top:
    """`python -m ebbpool top`, in this process, and what it has printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def shown(self, *arguments: object) -> Any:
        assert main(["top", *map(str, arguments), "--json"]) == 0
        return json.loads(self._capsys.readouterr().out)

    def fails(self, *arguments: object) -> str:
        assert main(["top", *map(str, arguments)]) == 1
        told = self._capsys.readouterr()
        assert told.out == ""
        return told.err


@pytest.fixture
def top(capsys: pytest.CaptureFixture[str]) -> Top:
    return Top(capsys)


@pytest.fixture
def path(short_path: Path) -> str:
    return str(short_path / "m")


@contextmanager
def program(*command: str, cwd: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run a command until the block is left; wait until it has printed a line."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=cwd, env=environment()) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield process
        finally:
            process.kill()


LISTENS = """
import sys
import ebbpool.monitor
listening = ebbpool.monitor.listen(sys.argv[-1])
print(listening.path, flush=True)
input()
"""
LISTENING = (sys.executable, "-W", "ignore", "-c", LISTENS)
"""A command that listens at the path which is its last argument."""


@contextmanager
def listening(path: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        yield server


@contextmanager
def asked(server: socket.socket, *arguments: object) -> Iterator[tuple[socket.socket, Background]]:
    """Run `top` in the background; yield its connection, once it has asked, and the call."""
    call = Background(lambda: main(["top", *map(str, arguments)]))
    connection, _ = server.accept()
    with connection:
        assert connection.recv(1000).startswith(b'{"get": "snapshot", "stacks": ')
        yield connection, call


@pytest.fixture
def held(path: str) -> Iterator[str]:
    """The path where this process listens, whose pool "web" has one task that does not end."""
    with AdaptiveExecutor(1, "web") as pool, Gate() as gate, monitor.listen(path):
        gate.hold(pool)
        yield path


@needs_proc
def test_a_process_is_found_by_its_number(held: str, top: Top, capsys: pytest.CaptureFixture[str]) -> None:
    other = held + "-other"
    with listening(other), socket.socket(socket.AF_UNIX) as nameless:
        nameless.bind("")
        nameless.listen()
        shown = top.shown(os.getpid())
        assert shown["pid"] == os.getpid()
        (web,) = [each for each in shown["pools"] if each["name"] == "web"]
        assert ("wait" if STACKS else "(no stack") in web["tasks"][0]["stack"]
        (ours,) = [each for each in top.shown()["processes"] if each["pid"] == os.getpid()]
        assert ours["path"] == held and ours["command"]
        assert main(["top"]) == 0
        out = capsys.readouterr().out
        assert f"{os.getpid():>7}  {held}" in out and other not in out


@needs_proc
@pytest.mark.parametrize(
    ("options", "shown"),
    [("-u -X dev", "program.py --port 80"), ("-m", "program --port 80"), ("-c", "-c import program")],
)
def test_the_list_names_programs_and_not_what_runs_them(
    path: str, options: str, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = LISTENS.replace("sys.argv[-1]", repr(path))
    (tmp_path / "program.py").write_text(script, encoding="utf-8")
    named = {"-m": ["program", "--port", "80"], "-c": ["import program"]}
    command = [sys.executable, *options.split(), *named.get(options, [str(tmp_path / "program.py"), "--port", "80"])]
    with program(*command, cwd=tmp_path) as process:
        assert main(["top"]) == 0
    (line,) = re.findall(rf"^ *{process.pid} .*$", capsys.readouterr().out, re.MULTILINE)
    assert line.split(maxsplit=2)[1:] == [path, shown]


SPAWNS = """
import multiprocessing
import sys
import ebbpool.monitor

def listen(path):
    with ebbpool.monitor.listen(path):
        print(path, flush=True)
        multiprocessing.parent_process().join()

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=listen, args=sys.argv[1:])
    child.start()
    child.join()
"""


@needs_proc
def test_the_list_names_the_program_of_a_spawned_child(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "program.py").write_text(SPAWNS, encoding="utf-8")
    with program(sys.executable, "program.py", path, cwd=tmp_path) as process:
        assert main(["top"]) == 0
    (line,) = re.findall(rf"^.* {re.escape(path)} .*$", capsys.readouterr().out, re.MULTILINE)
    assert line.split()[0] != str(process.pid) and line.split(maxsplit=2)[2] == f"program.py {path}"


def test_a_process_that_does_not_answer_at_once_is_waited_for_and_not_asked_again(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with listening(path) as server, asked(server, path, "--json") as (connection, call):
        # More than the socket keeps: some of it has been read once all is sent.
        connection.sendall(b'{"pools": [%s 1], "pi' % (b"1," * 500_000))
        connection.sendall(b'd": 1}\n')
        assert call.join() == 0
        assert connection.recv(1000) == b"", "one request is enough"
    assert json.loads(capsys.readouterr().out)["pid"] == 1


def test_a_process_that_never_answers_is_given_up(path: str, top: Top, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "TIMEOUT", 0.0)
    monkeypatch.setattr(run, "LATE", 0.0)
    with listening(path):
        told = top.fails(path, "--json")
    assert re.search(r"no answer for \d+ s\n", told) and "something may hold its GIL" in told


def test_too_many_others_who_wait_are_no_error(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(path) as server, ExitStack() as stack:
        server.listen(0)
        others = 0
        with suppress(BlockingIOError):
            while True:
                other = stack.enter_context(socket.socket(socket.AF_UNIX))
                other.setblocking(False)
                other.connect(path)
                others += 1
        blocked, connect = threading.Semaphore(0), socket.socket.connect

        def told(*arguments: Any) -> None:
            with suppress(BlockingIOError):
                return connect(*arguments)
            blocked.release()
            raise BlockingIOError

        monkeypatch.setattr(socket.socket, "connect", told)
        call = Background(lambda: main(["top", path, "--json"]))
        assert blocked.acquire(timeout=TIMEOUT)
        for _ in range(others):
            server.accept()[0].close()
        with server.accept()[0] as connection:
            connection.sendall(b'{"pools": []}\n')
            assert call.join() == 0


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\n", "is not an ebbpool monitor: it answers b'HTTP/1.1"),
        (b"[1]\n", "is not an ebbpool monitor"),
        (b"{}\n", "is not an ebbpool monitor"),
        (b"x" * 2000, "sends without an end"),
        (b'{"error": "busy\\u001b[2J"}\n', r": busy\x1b[2J"),
        (b"", "has ended, or no longer listens"),
        pytest.param(b'{"pools": [{}]}\n', "does not understand", marks=needs_rich),
        pytest.param(b'{"pools": [{"name": 1}], "time": "now"}\n', "does not understand", marks=needs_rich),
    ],
)
def test_what_is_no_monitor_or_another_one_is_said_to_be(
    path: str, answer: bytes, reason: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "LONGEST", 1000)
    with listening(path) as server, asked(server, path, "--once") as (connection, call):
        connection.sendall(answer)
        connection.shutdown(socket.SHUT_WR)
        assert call.join() == 1
    told = capsys.readouterr().err
    assert reason in told and "\x1b" not in told
    assert reason != "does not understand" or f"this version, {ebbpool.__version__}" in told


def test_nobody_listens(path: str, top: Top, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "everyone", list)
    assert re.search(r"no process of yours is listening\..*top PID.*EBBPOOL_MONITOR", top.fails(), re.DOTALL)
    assert top.fails(path) == f"python -m ebbpool top: there is no {path!r}\n"
    with listening(path):
        pass
    assert "nothing is listening there: the process has exited" in top.fails(path)
    Path(path).unlink()
    Path(path).write_text("")
    assert "it is no socket" in top.fails(path)


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="the platform cannot stop processes")
def test_a_process_that_is_stopped_and_ends_is_said_to_have_ended(
    path: str, top: Top, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with waiting(f"from ebbpool import monitor; monitor.listen({path!r})") as process:
        assert top.shown(path)["pid"] == process.pid
        # As silent as one whose GIL is held.
        process.send_signal(signal.SIGSTOP)
        assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
        monkeypatch.setattr(run, "LATE", 0.0)
        call = Background(lambda: top.fails(path, "--json"))
        # It knows the number of the process once it has connected.
        eventually(lambda: f"process {process.pid}: no answer" in capsys.readouterr().err)
        process.kill()
        assert f"process {process.pid} has ended" in call.join()


@needs_proc
def test_processes_that_are_gone_or_of_another_user_and_a_python_that_cannot_attach(
    top: Top, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert top.fails(10**9) == "python -m ebbpool top: there is no process 1000000000\n"
    process = subprocess.Popen([sys.executable, "-c", ""])
    eventually(lambda: ") Z " in Path(f"/proc/{process.pid}/stat").read_text(), "it ends", 6 * TIMEOUT)
    for _ in ("while it is a zombie", "once it is gone"):
        assert f"there is no process {process.pid}" in top.fails(process.pid)
        process.wait()
    with monkeypatch.context() as other:
        other.setattr(os, "geteuid", lambda: 4001)
        assert "belongs to another user; try: sudo" in top.fails(os.getpid())
    monkeypatch.delattr(sys, "remote_exec", raising=False)
    told = "cannot attach to it: that needs CPython 3.14 or later.*Start it with EBBPOOL_MONITOR=PATH"
    assert re.search(told, top.fails(os.getpid()), re.DOTALL)


@needs_proc
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PermissionError(13, "Permission denied"), "the same user and, .*ptrace_scope.*sudo"),
        (RuntimeError("Remote debugging is not enabled in the remote process"), "PYTHON_DISABLE_REMOTE_DEBUG"),
        (
            RuntimeError("Can't send commands from a Python 3.14 process to a Python 3.13 process"),
            "Run top with the Python of that process: /",
        ),
        (RuntimeError("PyRuntime address lookup failed during debug offsets initialization"), "no Python at all"),
        (OSError(5, "Input/output error"), "cannot be attached to: .*Input/output error"),
    ],
)
def test_why_a_process_cannot_be_attached_to(
    error: Exception, reason: str, top: Top, monkeypatch: pytest.MonkeyPatch, short_path: Path
) -> None:
    def refuse(pid: int, script: str) -> None:
        raise error

    monkeypatch.setattr(sys, "remote_exec", refuse, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(short_path))
    assert re.search(reason, top.fails(os.getpid()), re.DOTALL)
    assert list(short_path.iterdir()) == []


@needs_proc
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a directory away")
def test_root_keeps_what_it_writes_out_of_reach(monkeypatch: pytest.MonkeyPatch, short_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short_path))
    monkeypatch.setattr(processes, "owner_of", lambda _: (65534, 65534))
    monkeypatch.setattr(sys, "remote_exec", lambda *_: None, raising=False)
    attached = processes.Attached(os.getpid())
    path = Path(attached.path)
    found = [each.stat() for each in (path.parent, path.parent / "script.py", path)]
    modes = [(each.st_uid, each.st_mode & 0o777) for each in found]
    assert modes == [(0, 0o711), (0, 0o644), (65534, 0o600)], "that user may connect, and nothing else"
    attached.close(True)
    assert list(short_path.iterdir()) == []


def foreign() -> list[str]:
    """Return what runs a command in a mount namespace of its own."""
    for flags in (["-m"], ["-r", "-m"]):
        command = ["unshare", *flags]
        if (
            shutil.which("unshare")
            and not subprocess.run([*command, "true"], capture_output=True, check=False).returncode
        ):
            return command
    pytest.skip("nothing can be put in a mount namespace of its own here")


@needs_proc
def test_nothing_is_touched_in_another_mount_namespace(path: str, top: Top, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there may be links to files of ours, whether the process listens or not."""
    attached: list[object] = []
    monkeypatch.setattr(sys, "remote_exec", lambda *args: attached.append(args), raising=False)
    monkeypatch.setattr(tempfile, "mkdtemp", attached.append)
    with program(*foreign(), *LISTENING, path) as process:
        told = top.fails(process.pid)
        assert f"process {process.pid} sees other files than top, as in a container; run top in there" in told
        assert process.pid not in [each["pid"] for each in top.shown()["processes"]]
    assert attached == []


@needs_proc
def test_a_process_that_a_link_leads_to_is_not_asked(path: str, top: Top) -> None:
    with socket.socket(socket.AF_UNIX) as other, program(*LISTENING, path) as process:
        other.bind(path + "other")
        other.listen()
        os.unlink(path)
        os.symlink(path + "other", path)
        assert f"process {process.pid} has ended, or no longer listens on" in top.fails(process.pid)
        connection, _ = other.accept()
        with connection:
            assert connection.recv(1) == b""


@needs_proc
@pytest.mark.parametrize("way", ["writable", "below one that is", "of another user"])
def test_nothing_is_made_where_another_user_may_put_links(
    way: str, monkeypatch: pytest.MonkeyPatch, short_path: Path
) -> None:
    folder = short_path / "t"
    folder.mkdir(mode=0o700)
    if way == "of another user":
        if os.geteuid() != 0:
            pytest.skip("only root can give a directory away")
        os.chown(folder, 65534, 65534)
    else:
        (folder if way == "writable" else short_path).chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(sys, "remote_exec", lambda *_: None, raising=False)
    attached = processes.Attached(os.getpid())
    try:
        assert Path(attached.path).parent.parent == Path("/tmp").resolve()
    finally:
        attached.close(True)
    assert list(folder.iterdir()) == []


def await_sleep(process: subprocess.Popen[str]) -> None:
    """Wait until the main thread of a process waits for a line: until then it may run Python code."""
    stat = Path(f"/proc/{process.pid}/stat")

    def all_sleep() -> bool:
        # The main thread comes last: while another one runs, it may be asleep because that one has the GIL.
        threads = [*stat.parent.glob("task/*/stat"), stat] if stat.exists() else []
        return all(each.read_text().rpartition(")")[2].split()[0] == "S" for each in threads)

    eventually(all_sleep)


@contextmanager
def waiting(first: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that does what is to be done `first`, and whose main thread waits for a line."""
    script = f"""
    import sys, threading
    {first}
    print("runs", flush=True)
    for line in iter(sys.stdin.readline, ""):
        print(threading.active_count(), flush=True)
    """
    with program(sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)) as process:
        await_sleep(process)
        yield process


def go_on(process: subprocess.Popen[str]) -> int:
    """Have a process come to what it was asked for; return how many threads it had when it went on."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return int(process.stdout.readline())


needs_attaching = pytest.mark.skipif(not hasattr(sys, "remote_exec"), reason="this Python cannot attach to others")


@pytest.fixture
def temporary(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files; the test is skipped where the system lets nobody attach."""
    monkeypatch.setattr(tempfile, "tempdir", str(short_path))
    with waiting("") as process:
        try:
            processes.Attached(process.pid).close(True)
        except processes.Failed as error:
            if "ptrace" in str(error):
                pytest.skip("the system lets nobody attach to a process")
    return short_path


@needs_attaching
def test_a_process_that_prepared_nothing_is_looked_at(temporary: Path) -> None:
    imports = "import ebbpool, socket; pool = ebbpool.AdaptiveExecutor(3, 'unprepared'); socket.setdefaulttimeout(1e-9)"
    with waiting(imports) as there:
        pid = there.pid
        threads = Path(f"/proc/{pid}/task")
        before = set(threads.iterdir())
        attached = processes.Attached(pid)
        with closing(client.Client(attached.path, pid, attached)) as asking:
            asking.ask()
            # Its main thread waits for a line, and comes to the script after that.
            assert asking.take() is None
            assert asking.hope.startswith(f"waiting for process {pid} to answer\n")
            go_on(there)
            snapshot = asking.take(TIMEOUT)
            assert snapshot is not None
            assert [pool["name"] for pool in snapshot["pools"]] == ["unprepared"]
            assert set(threads.iterdir()) > before
            asking.ask()
            assert asking.take(TIMEOUT) is not None, "it stays, and answers again"
        eventually(lambda: set(threads.iterdir()) == before, "it stops answering when the one who looks has left")
    assert list(temporary.iterdir()) == []


@needs_attaching
@pytest.mark.parametrize(
    ("imports", "reason"),
    [
        ("", "it has not imported ebbpool"),
        (
            "import ebbpool, json, shutil, socket; sys.meta_path = [type('No', (), {'find_spec': lambda *_: 1 / 0})]",
            "ZeroDivisionError: ",
        ),
        ("import socket; socket.socket = int", "it cannot connect to "),
    ],
)
def test_a_process_that_cannot_answer_says_why(
    imports: str, reason: str, temporary: Path, top: Top, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, ask = threading.Event(), getattr(sys, "remote_exec")  # noqa: B009  (not on Python 3.13)
    monkeypatch.setattr(sys, "remote_exec", lambda *arguments: (ask(*arguments), asked.set()))
    with waiting(imports) as there:
        call = Background(lambda: top.fails(there.pid, "--json"))
        assert asked.wait(TIMEOUT)
        go_on(there)
        assert f"cannot watch process {there.pid}: {reason}" in call.join()
    assert list(temporary.iterdir()) == []


@needs_attaching
def test_a_top_that_ends_before_the_process_is_attached_leaves_no_thread_and_no_file(temporary: Path) -> None:
    with waiting("import ebbpool") as there:
        processes.Attached(there.pid).close(False)
        assert len(list(temporary.iterdir())) == 1
        assert go_on(there) == 1
        eventually(lambda: not list(temporary.iterdir()))


@needs_rich
def test_once_prints_one_screen(held: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["top", held, "--once", "--stacks"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"pid {os.getpid()}  ")
    assert any(line.startswith("web ") and "1/1" in line for line in lines)
    assert any(line.startswith("STACK of ") and "web_0" in line for line in lines)
    assert not any("\x1b" in line for line in lines)
    done = python("-m", "ebbpool", "top", held, "--once", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "web" in done.stdout, f"without the bars: {done.stderr}"


def test_showing_without_rich_says_what_to_install(path: str, top: Top, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with monitor.listen(path):
        assert "pip install rich" in top.fails(path, "--once")
