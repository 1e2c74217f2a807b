"""The fork server stopped, stuck, or silent: it costs neither the service nor anybody who wants to stop it."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

if os.name != "posix":
    pytest.skip("signals and the fork server", allow_module_level=True)

from support.prefork import site

from ebbpool.prefork import NEVER_STARTED, STOPPED, UNFINISHED

STOPPABLE = """
def serve(child):
    say(f"event=fork_server pid={os.getppid()}")
    child.serve(Server(child.listener))
"""


def test_a_fork_server_that_somebody_stopped_is_continued(tmp_path: Path) -> None:
    with site(tmp_path, "serve, context='forkserver'", STOPPABLE) as running:
        children = running.children()
        os.kill(int(running.await_event("fork_server")["pid"]), signal.SIGSTOP)
        os.kill(children[0], signal.SIGKILL)
        running.await_event("child_exited", number=0, pid=children[0], exitcode=-9)
        running.child(0, 2)
        assert not running.events("fork_server_killed")
        assert running.stop() == STOPPED


def test_a_start_that_finds_the_fork_server_stopped_continues_it(tmp_path: Path) -> None:
    with site(tmp_path, "serve, processes=1, context='forkserver'", STOPPABLE) as running:
        running.children(1)
        os.kill(int(running.await_event("fork_server")["pid"]), signal.SIGSTOP)
        running.signal(signal.SIGTTIN)
        running.child(1)
        assert running.stop() == STOPPED


@pytest.mark.parametrize("numbers", [(signal.SIGTERM,), (signal.SIGQUIT,), (signal.SIGINT, signal.SIGINT)])
def test_it_stops_although_the_fork_server_is_stopped(tmp_path: Path, numbers: tuple[signal.Signals, ...]) -> None:
    with site(tmp_path, "serve, context='forkserver'", STOPPABLE) as running, contextlib.ExitStack() as requests:
        running.children()
        if len(numbers) > 1:
            # Not everybody is gone before the second signal comes.
            requests.enter_context(running.begin("stick"))
        os.kill(int(running.await_event("fork_server")["pid"]), signal.SIGSTOP)
        for count, number in enumerate(numbers):
            running.signal(number)
            running.await_event("signal", count + 1)
        assert running.status() == (STOPPED if numbers == (signal.SIGTERM,) else UNFINISHED)


STUCK = """
import multiprocessing
multiprocessing.set_forkserver_preload(["stuck"])
"""


@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGQUIT])
def test_a_fork_server_that_never_answers_is_killed(tmp_path: Path, number: signal.Signals | None) -> None:
    (tmp_path / "stuck.py").write_text(
        "import sys, threading\nsys.stderr.write('event=stuck\\n')\nthreading.Event().wait()\n", encoding="utf-8"
    )
    limit = 0.1 if number is None else 3600.0
    with site(tmp_path, f"processes=1, context='forkserver', start_timeout={limit}", STUCK) as running:
        running.await_event("stuck")
        if number is not None:
            running.signal(number)
        assert running.status() == NEVER_STARTED
        running.await_event("fork_server_killed")
        running.await_event("start_failed")


def test_a_child_that_closed_its_end_of_the_pipe_is_killed_and_replaced(tmp_path: Path) -> None:
    script = """
    def serve(child):
        if not os.path.exists("again"):
            open("again", "w").close()
            child.ready()
            child._line.close()
            threading.Event().wait()
        child.serve(Server(child.listener))
    """
    for context in ("spawn", "forkserver"):
        (tmp_path / "again").unlink(missing_ok=True)
        with site(tmp_path, f"serve, processes=1, context={context!r}", script) as running:
            running.await_event("child_cut_off", number=0)
            running.await_event("child_exited", number=0, exitcode=-9)
            running.child(0, 2)
            assert not running.events("fork_server_killed")
            assert running.stop() == STOPPED


def test_children_are_replaced_though_nobody_reads_standard_error(tmp_path: Path) -> None:
    script = """
    def serve(child):
        child.serve(Server(child.listener))

    class Silent(logging.Handler):
        def emit(self, record):
            os.write(told, record.getMessage().encode() + b"\\n")
            try:
                sys.stderr.write("to nobody")
                sys.stderr.flush()
            except BrokenPipeError:
                pass

    if __name__ == "__main__":
        told = os.dup(2)
        read, write = os.pipe()
        os.dup2(write, 2)
        os.close(write)
        os.close(read)
        logging.basicConfig(level=logging.INFO, handlers=[Silent()])
    """
    for context in ("spawn", "forkserver"):
        with site(tmp_path, f"serve, processes=1, context={context!r}", script) as running:
            os.kill(running.child(0), signal.SIGKILL)
            running.child(0, 2)
            assert not running.events("start_failed")
            running.signal(signal.SIGTERM)
            running.await_event("stopped", status=STOPPED)
            assert running.status() in (STOPPED, 120)
