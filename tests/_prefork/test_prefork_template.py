"""The template that forks children: what it imports, and what happens when it is stopped, stuck or dead."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

if os.name != "posix":
    pytest.skip("signals and forks", allow_module_level=True)

from support.prefork import answer_on, site

from ebbpool.prefork import NEVER_STARTED, STOPPED, UNFINISHED

STOPPABLE = """
def serve(child):
    say(f"event=template pid={os.getppid()}")
    child.serve(Server(child.listener))
"""


def test_a_template_that_somebody_stopped_is_continued(tmp_path: Path) -> None:
    with site(tmp_path, "serve", STOPPABLE) as running:
        children = running.children()
        template = int(running.await_event("template")["pid"])
        os.kill(template, signal.SIGSTOP)
        os.kill(children[0], signal.SIGKILL)
        running.await_event("child_exited", number=0, pid=children[0], exitcode=-9)
        running.child(0, 2)
        os.kill(template, signal.SIGSTOP)
        running.signal(signal.SIGTTIN)
        running.child(2)
        assert not running.events("template_killed")
        assert running.stop() == STOPPED


@pytest.mark.parametrize("numbers", [(signal.SIGTERM,), (signal.SIGQUIT,), (signal.SIGINT, signal.SIGINT)])
def test_it_stops_although_the_template_is_stopped(tmp_path: Path, numbers: tuple[signal.Signals, ...]) -> None:
    with site(tmp_path, "serve", STOPPABLE) as running, contextlib.ExitStack() as requests:
        running.children()
        if len(numbers) > 1:
            # Not everybody is gone before the second signal comes.
            requests.enter_context(running.begin("stick"))
        os.kill(int(running.await_event("template")["pid"]), signal.SIGSTOP)
        for count, number in enumerate(numbers):
            running.signal(number)
            running.await_event("signal", count + 1)
        assert running.status() == (STOPPED if numbers == (signal.SIGTERM,) else UNFINISHED)


@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGQUIT])
def test_a_template_whose_imports_never_end_is_killed(tmp_path: Path, number: signal.Signals | None) -> None:
    (tmp_path / "stuck.py").write_text(
        "import sys, threading\nsys.stderr.write('event=stuck\\n')\nthreading.Event().wait()\n", encoding="utf-8"
    )
    limit = 0.1 if number is None else 3600.0
    with site(tmp_path, f"processes=1, preload=['stuck'], start_timeout={limit}, graceful_timeout=0.5") as running:
        if number is not None:
            running.await_event("stuck")
            running.signal(number)
        assert running.status() == (NEVER_STARTED if number is None else UNFINISHED)
        running.await_event("template_killed")
        running.await_event("start_failed")


@pytest.mark.parametrize("preload", [False, True])
def test_what_is_preloaded_is_imported_once(tmp_path: Path, preload: bool) -> None:
    (tmp_path / "more.py").write_text("import sys\nsys.stderr.write('event=more\\n')\n", encoding="utf-8")
    script = """
    say(f"event=imported main={__name__ == '__main__'}")

    def serve(child):
        say(f"event=name name={multiprocessing.current_process().name} more={'more' in sys.modules} {sys.argv[1:]}")
        child.serve(Server(child.listener))

    import multiprocessing
    """
    with site(tmp_path, f"serve, processes=1, preload={['more'] if preload else False}", script) as running:
        first = running.child(0)
        running.await_text(f"event=name name=ebbpool-prefork-0 more={preload} []")
        os.kill(first, signal.SIGKILL)
        running.child(0, 2)
        assert len(running.events("imported", main=False)) == (1 if preload else 2)
        running.signal(signal.SIGHUP)
        running.await_event("reload_done")
        assert len(running.events("imported", main=False)) == (2 if preload else 3)
        assert running.stop() == STOPPED


def test_a_module_that_cannot_be_imported_fails_the_start(tmp_path: Path) -> None:
    with site(tmp_path, "preload=['no_such_module']") as running:
        assert running.status() == NEVER_STARTED
        running.await_text("No module named 'no_such_module'")
        running.await_event("start_failed")


def test_threads_of_a_preloaded_module_are_reported(tmp_path: Path) -> None:
    script = """
    if __name__ != "__main__":
        threading.Thread(target=threading.Event().wait, name="restless", daemon=True).start()
    """
    with site(tmp_path, "processes=1, preload=True", script) as running:
        assert running.await_event("template_threads")["threads"] == "restless"
        running.children(1)
        assert running.stop() == STOPPED


@pytest.mark.parametrize("preload", [False, True])
def test_a_function_may_bring_sockets_along(tmp_path: Path, preload: bool) -> None:
    script = """
    import socket

    def serve(own, child):
        say(f"event=own port={own.getsockname()[1]}")
        child.serve(Server(child.listener))

    if __name__ == "__main__":
        own = socket.create_server(("127.0.0.1", 0))
        say(f"event=parents port={own.getsockname()[1]}")
        go(functools.partial(serve, own), preload=__PRELOAD__)
    """
    with site(tmp_path, None, script.replace("__PRELOAD__", str(preload))) as running:
        port = running.await_event("parents")["port"]
        os.kill(running.child(0), signal.SIGKILL)
        running.await_event("own", 3, port=port)
        assert running.stop() == STOPPED


def test_where_nothing_can_be_forked_children_are_spawned(tmp_path: Path) -> None:
    with site(tmp_path, "preload=True", "tune(_parent, FORKS=False)\n") as running:
        first, second = running.children()
        os.kill(first, signal.SIGKILL)
        running.await_event("child_exited", number=0, pid=first, exitcode=-9)
        new = running.child(0, 2)
        running.signal(signal.SIGHUP)
        running.await_event("reload_done")
        # Until they are gone, the old ones may take a connection that has come.
        for old in (second, new):
            running.await_event("child_exited", pid=old)
        with running.begin() as connection:
            running.signal(signal.SIGTERM)
            assert answer_on(connection) not in (first, second, new)
        assert running.status() == STOPPED


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
    for preload in (False, True):
        with site(tmp_path, f"serve, processes=1, preload={preload}", script) as running:
            os.kill(running.child(0), signal.SIGKILL)
            running.child(0, 2)
            assert not running.events("start_failed")
            running.signal(signal.SIGTERM)
            running.await_event("stopped", status=STOPPED)
            assert running.status() in (STOPPED, 120)
