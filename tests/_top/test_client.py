"""Asking a process that answers, is stuck, ends, or is none of ours; finding it; attaching to it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.common import STACKS, TIMEOUT, Background, Gate, eventually

import ebbpool
from ebbpool import AdaptiveExecutor, monitor
from ebbpool._top import attaching, finding
from ebbpool._top.client import Client
from ebbpool._top.finding import Failed
from ebbpool._top.run import run

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="the platform has no Unix sockets")
needs_proc = pytest.mark.skipif(not os.path.exists("/proc/net/unix"), reason="only Linux tells who listens")
needs_rich = pytest.mark.skipif(importlib.util.find_spec("rich") is None, reason="rich is not installed")
HOME = str(Path(ebbpool.__file__).parent.parent)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "m")


@contextmanager
def program(script: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """Run `script` in a process of its own until the block is left; wait until it has printed a line."""
    process: subprocess.Popen[str] = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": HOME} | environ,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def listening(path: str) -> Iterator[socket.socket]:
    """Listen as something that is no monitor."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        yield server


def test_one_snapshot_after_another(path: str) -> None:
    with monitor.listen(path), closing(Client(path)) as client:
        for stacks in (False, True):
            client.ask(stacks)
            snapshot = client.take(TIMEOUT)
            assert snapshot is not None
            assert snapshot["pid"] == os.getpid() == client.pid
            assert client.silent == 0


def test_one_that_does_not_answer_is_waited_for_and_not_asked_again(path: str) -> None:
    now = [100.0]
    with listening(path) as server, closing(Client(path, clock=lambda: now[0])) as client:
        client.ask()
        assert client.take() is None
        now[0] += 4.5
        client.ask()
        assert client.take() is None
        assert client.silent == 4.5
        connection, _ = server.accept()
        with connection:
            assert connection.recv(1000) == b'{"get": "snapshot", "stacks": false}\n'
            connection.sendall(b'{"pools": [], "pi')
            assert client.take() is None
            connection.sendall(b'd": 1}\n')
            assert client.take() == {"pools": [], "pid": 1}
        assert client.silent == 0


def test_too_many_others_who_wait_are_no_error(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(0)
        others = []
        try:
            while True:
                others.append(socket.socket(socket.AF_UNIX))
                others[-1].setblocking(False)
                others[-1].connect(path)
        except BlockingIOError:
            pass
        with closing(Client(path)) as client:
            client.ask()
            assert client.take() is None
            assert client.silent > 0
            server.accept()[0].close()
            assert client.take() is None
            assert client.waits_for()
        for other in others:
            other.close()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\n", "is not an ebbpool monitor: it answers b'HTTP/1.1"),
        (b"[1]\n", "is not an ebbpool monitor"),
        (b"{}\n", "is not an ebbpool monitor"),
        (b'{"error": "busy"}\n', "refuses: busy"),
        (b"", "has ended, or no longer listens"),
    ],
)
def test_what_is_no_monitor_is_said_to_be_none(path: str, line: bytes, reason: str) -> None:
    with listening(path) as server, closing(Client(path)) as client:
        client.ask()
        connection, _ = server.accept()
        connection.sendall(line)
        connection.close()
        with pytest.raises(Failed, match=reason):
            client.take(TIMEOUT)


def test_paths_where_nobody_listens(path: str) -> None:
    with pytest.raises(Failed, match=f"there is no '{path}'"):
        Client(path).ask()
    with listening(path):
        pass
    with pytest.raises(Failed, match="nobody is listening there: the process has ended"):
        Client(path).ask()
    Path(path).unlink()
    Path(path).write_text("")
    with pytest.raises(Failed, match="it is no socket"):
        Client(path).ask()


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="the platform cannot stop processes")
def test_a_process_that_ends_is_said_to_have_ended(path: str) -> None:
    script = f"""
    import sys
    from ebbpool import monitor
    monitor.listen({path!r})
    print("listens", flush=True)
    sys.stdin.read()
    """
    with program(script) as process, closing(Client(path)) as client:
        client.ask()
        assert client.take(TIMEOUT)
        # As silent as one whose GIL is held.
        process.send_signal(signal.SIGSTOP)
        assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
        client.ask()
        assert client.take() is None
        assert client.silent > 0
        process.kill()
        with pytest.raises(Failed, match=f"process {process.pid} has ended"):
            client.take(TIMEOUT)


@needs_proc
def test_a_process_is_found_by_its_number(path: str) -> None:
    with monitor.listen(path):
        assert finding.find(os.getpid()) == path
        ((_, there, command),) = [each for each in finding.everyone() if each[0] == os.getpid()]
        assert there == path and command
    assert finding.find(os.getpid()) is None
    assert os.getpid() not in [pid for pid, *_ in finding.everyone()]


@needs_proc
def test_other_sockets_are_passed_over(path: str) -> None:
    with listening(path), socket.socket(socket.AF_UNIX) as nameless:
        nameless.bind("")
        nameless.listen()
        assert finding.find(os.getpid()) is None


@needs_proc
def test_who_lives() -> None:
    assert finding.alive(os.getpid())
    process = subprocess.Popen([sys.executable, "-c", ""])
    eventually(lambda: not finding.alive(process.pid), "the zombie counts as ended")
    process.wait()
    assert not finding.alive(process.pid)
    assert not finding.alive(10**9)


def failing(*arguments: Any) -> str:
    with pytest.raises(Failed) as caught:
        attaching.Attached(*arguments)
    return str(caught.value)


def test_a_process_that_is_gone_cannot_be_attached_to() -> None:
    assert failing(10**9) == "there is no process 1000000000"


@needs_proc
def test_a_python_without_remote_exec_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "remote_exec", raising=False)
    text = failing(os.getpid())
    assert "cannot attach to it: that needs CPython 3.14 or later" in text
    assert "Start it with EBBPOOL_MONITOR=PATH" in text
    monkeypatch.setattr(attaching, "named_in_environment", lambda _: "/run/x")
    assert "EBBPOOL_MONITOR in its environment says /run/x, so it has not made a pool yet" in failing(os.getpid())


@needs_proc
def test_the_environment_of_a_process_is_read() -> None:
    with program("print('begun', flush=True); input()", EBBPOOL_MONITOR="at/{pid}") as process:
        assert finding.named_in_environment(process.pid) == f"{os.getcwd()}/at/{process.pid}"


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
    error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(pid: int, script: str) -> None:
        raise error

    monkeypatch.setattr(sys, "remote_exec", refuse, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert re.search(reason, failing(os.getpid()), re.DOTALL)
    assert list(tmp_path.iterdir()) == []


@needs_proc
def test_the_process_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4001)
    assert "belongs to another user; try: sudo" in failing(os.getpid())


def attachable() -> bool:
    if not hasattr(sys, "remote_exec"):
        return False
    with program("import time\nprint(1, flush=True)\nwhile True: time.sleep(0.01)") as process:
        try:
            attaching.Attached(process.pid).close(True)
        except Failed as error:
            return "ptrace" not in str(error)
    return True


needs_attaching = pytest.mark.skipif(not hasattr(sys, "remote_exec"), reason="this Python cannot attach to others")


def await_asleep(process: subprocess.Popen[str]) -> None:
    """Wait until the main thread of a process waits, where the system tells: until then it may run Python code."""
    stat = Path(f"/proc/{process.pid}/stat")
    eventually(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "S")


UNPREPARED = """
    import sys, threading, time
    {imports}
    print("runs", flush=True)
    for line in iter(sys.stdin.readline, ""):
        print(threading.active_count(), flush=True)
    """


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if not attachable():
        pytest.skip("the system lets nobody attach to a process")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@needs_attaching
def test_what_hangs_is_seen_from_outside(
    temporary: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main thread sits in a call of the system, so that the process cannot be made to listen."""
    script = """
        import ebbpool, threading
        pool = ebbpool.AdaptiveExecutor(4, "hangs")
        begun = threading.Barrier(3)
        def first():
            begun.wait()
            threading.Event().wait()
        def second():
            begun.wait()
            threading.Event().wait()
        pool.submit(int).result()
        pool.submit(first), pool.submit(second)
        begun.wait()
        def idle():
            print("runs", flush=True)
            input()
        idle()
        """
    monkeypatch.setattr("ebbpool._top.run.PATIENCE", 1.0)
    monkeypatch.setattr("ebbpool._top.run.LATE", 0.5)
    with program(script) as process:
        await_asleep(process)
        assert run(str(process.pid), once=True, as_json=True, stacks=False) == 1
    told = capsys.readouterr().err
    assert re.search(r"^hangs_0:\n  <string>:\d+ in (first|second)\n", told, re.MULTILINE), told
    assert re.search(r"^hangs_1:\n  <string>:\d+ in (first|second)\n", told, re.MULTILINE), told
    assert re.search(r"^  <string>:\d+ in idle$", told, re.MULTILINE), told
    assert "_pool" not in told


@needs_attaching
def test_a_process_that_prepared_nothing_is_looked_at(temporary: Path) -> None:
    script = UNPREPARED.format(imports="import ebbpool; pool = ebbpool.AdaptiveExecutor(3, 'unprepared')")
    with program(script) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        await_asleep(process)
        attached = attaching.Attached(process.pid)
        with closing(Client(attached.path, attached)) as client:
            client.ask()
            # Its main thread waits for a line, and comes to the script after that.
            assert client.take() is None
            assert client.hope.startswith(f"waiting for process {process.pid} to listen\n")
            process.stdin.write("\n")
            process.stdin.flush()
            snapshot = client.take(TIMEOUT)
            assert snapshot is not None
            assert [pool["name"] for pool in snapshot["pools"]] == ["unprepared"]
            assert finding.find(process.pid) == attached.path

        def threads() -> int:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        eventually(lambda: threads() == 1, "it stops listening when the last one has left")
        assert finding.find(process.pid) is None
    assert list(temporary.iterdir()) == []


@needs_proc
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a directory away")
def test_root_keeps_what_it_writes_out_of_reach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(attaching, "owner_of", lambda _: (65534, 65534))
    monkeypatch.setattr(sys, "remote_exec", lambda *_: None, raising=False)
    attached = attaching.Attached(os.getpid())
    theirs = Path(attached.path).parent
    ours = theirs.parent
    assert [(path.stat().st_uid, path.stat().st_mode & 0o777) for path in (ours, ours / "script.py", theirs)] == [
        (0, 0o711),
        (0, 0o644),
        (65534, 0o700),
    ]
    # What that user puts there is neither followed nor waited for.
    (theirs / "reason").symlink_to("/etc/passwd")
    assert attached.refusal() is None
    (theirs / "reason").unlink()
    os.mkfifo(theirs / "reason")
    assert attached.refusal() == ""
    attached.close(False)
    assert list(tmp_path.iterdir()) == []


@needs_attaching
def test_a_process_without_ebbpool_says_so(temporary: Path) -> None:
    with program(UNPREPARED.format(imports="")) as process:
        assert process.stdin is not None
        attached = attaching.Attached(process.pid)
        with closing(Client(attached.path, attached)) as client:
            process.stdin.write("\n")
            process.stdin.flush()
            with pytest.raises(Failed, match=r"cannot watch process .*: it has not imported ebbpool"):
                client.ask()
                client.take(TIMEOUT)
    assert list(temporary.iterdir()) == []


@needs_attaching
def test_one_who_leaves_before_the_process_comes_to_it_leaves_nothing(temporary: Path) -> None:
    with program(UNPREPARED.format(imports="import ebbpool")) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        await_asleep(process)
        attached = attaching.Attached(process.pid)
        Client(attached.path, attached).close()
        assert len(list(temporary.iterdir())) == 1
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "1\n"
        eventually(lambda: not list(temporary.iterdir()))


def test_one_object(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    with AdaptiveExecutor(1, "web") as pool, Gate() as gate, monitor.listen(path):
        gate.hold(pool)
        assert run(path, once=False, as_json=True, stacks=False) == 0
        shown = json.loads(capsys.readouterr().out)
        (web,) = [each for each in shown["pools"] if each["name"] == "web"]
        assert ("wait" if STACKS else "(no stack") in web["tasks"][0]["stack"]


@needs_rich
def test_one_screen(path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with AdaptiveExecutor(1, "web") as pool, Gate() as gate, monitor.listen(path):
        gate.hold(pool)
        assert run(path, once=True, as_json=False, stacks=True) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith(f"pid {os.getpid()}  ")
        assert any(line.startswith("web ") and "1/1" in line for line in lines)
        assert any(line.startswith("STACK of ") and "web_0" in line for line in lines)
        assert not any("\x1b" in line for line in lines)


@needs_rich
def test_showing_without_rich_says_what_to_install(
    path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with monitor.listen(path):
        assert run(path, once=True, as_json=False, stacks=False) == 1
    assert "pip install rich" in capsys.readouterr().err


@needs_rich
def test_an_encoding_without_the_bars_will_do(path: str) -> None:
    with AdaptiveExecutor(1, "web") as pool, Gate() as gate, monitor.listen(path):
        gate.hold(pool)
        command = [sys.executable, "-m", "ebbpool", "top", path, "--once"]
        environment = os.environ | {"PYTHONPATH": HOME, "PYTHONIOENCODING": "ascii"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * TIMEOUT, env=environment)
    assert done.returncode == 0 and "web" in done.stdout, done.stderr


@needs_proc
def test_the_processes_that_listen(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    with monitor.listen(path):
        assert run(None, once=False, as_json=False, stacks=False) == 0
        out = capsys.readouterr().out
        assert f"{os.getpid():>7}  {path}" in out
        assert run(None, once=False, as_json=True, stacks=False) == 0
        assert (os.getpid(), path) in [
            (each["pid"], each["path"]) for each in json.loads(capsys.readouterr().out)["processes"]
        ]


def test_nobody_listens(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebbpool._top.run.everyone", list)
    assert run(None, once=False, as_json=False, stacks=False) == 1
    told = capsys.readouterr().err
    assert "no process of yours is listening." in told and "top PID" in told and "EBBPOOL_MONITOR" in told


def test_a_failure_is_one_line_and_a_status(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(path, once=True, as_json=False, stacks=False) == 1
    assert capsys.readouterr().err == f"python -m ebbpool top: there is no {path!r}\n"


@pytest.mark.parametrize("answer", [b'{"pools": [{}]}', b'{"pools": [{"name": 1}], "time": "now"}'])
@needs_rich
def test_another_version_that_is_not_understood(path: str, answer: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with listening(path) as server:
        looking = Background(lambda: run(path, once=True, as_json=False, stacks=False))
        connection, _ = server.accept()
        connection.sendall(answer + b"\n")
        assert looking.join() == 1
        connection.close()
    assert f"sent an answer that this version, {ebbpool.__version__}, does not understand" in capsys.readouterr().err


def test_what_the_process_says_cannot_steer_the_terminal(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    with listening(path) as server:
        looking = Background(lambda: run(path, once=False, as_json=True, stacks=False))
        connection, _ = server.accept()
        connection.sendall(b'{"error": "\\u001b[2J"}\n')
        assert looking.join() == 1
        connection.close()
    assert r"refuses: \x1b[2J" in capsys.readouterr().err


def test_an_answer_without_an_end(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebbpool._top.client.LONGEST", 1000)
    with listening(path) as server, closing(Client(path)) as client:
        client.ask()
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"x" * 2000)
            with pytest.raises(Failed, match="sends without an end"):
                client.take(TIMEOUT)


def test_a_process_that_never_answers_is_given_up(
    path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbpool._top.run.PATIENCE", 0.0)
    monkeypatch.setattr("ebbpool._top.run.LATE", 0.0)
    with listening(path):
        assert run(path, once=False, as_json=True, stacks=False) == 1
    text = capsys.readouterr().err
    assert re.search(r"no answer for \d+ s", text)
    assert "something may hold its GIL" in text
