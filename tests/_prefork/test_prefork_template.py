"""The template that forks children, and what a child or the parent forks: its signals are its own."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from textwrap import dedent

import pytest

if os.name != "posix":
    pytest.skip("signals and forks", allow_module_level=True)

from support.common import eventually, run_script
from support.prefork import is_gone, site

from ebbpool.prefork import NEVER_STARTED, STOPPED, UNFINISHED

PRELOAD = pytest.mark.parametrize("preload", [False, True])


@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGQUIT])
def test_a_template_whose_imports_never_end_is_killed(tmp_path: Path, number: signal.Signals | None) -> None:
    script = """
    if __name__ != "__main__":
        say("event=stuck")
        threading.Event().wait()
    """
    limit = 0.1 if number is None else 3600.0
    call = f"processes=1, preload=True, start_timeout={limit}, graceful_timeout=0.5"
    with site(tmp_path, call, script) as running:
        if number is not None:
            running.await_event("stuck")
            running.signal(number)
        assert running.status() == (NEVER_STARTED if number is None else UNFINISHED)
        running.await_event("template_killed")
        running.await_event("start_failed")


@PRELOAD
def test_what_is_preloaded_is_imported_once_and_its_threads_are_reported(tmp_path: Path, preload: bool) -> None:
    script = """
    tell("imported", main=__name__ == "__main__")
    if __name__ != "__main__":
        threading.Thread(target=threading.Event().wait, name="restless", daemon=True).start()

    def serve(child):
        tell("name", name=multiprocessing.current_process().name, argv=sys.argv[1:])
        child.serve(Server(child.listener))

    import multiprocessing
    """
    with site(tmp_path, f"serve, processes=1, preload={preload}", script) as running:
        first = running.child(0)
        running.await_text("event=name name=ebbpool-prefork-0 argv=[]")
        assert [event["threads"] for event in running.events("template_threads")] == ["restless"] * preload
        os.kill(first, signal.SIGKILL)
        running.child(0, 2)
        assert len(running.events("imported", main=False)) == (1 if preload else 2)
        running.signal(signal.SIGHUP)
        running.await_event("reload_done")
        assert len(running.events("imported", main=False)) == (2 if preload else 3)
        assert running.stop() == STOPPED


REFUSE = """
def refuse(*_):
    raise OSError("no more processes")

tune(_parent, Template=refuse)
"""


LACK = """
if __name__ != "__main__":
    import no_such_module
"""


@pytest.mark.parametrize(
    ("script", "told"), [(LACK, "No module named 'no_such_module'"), (REFUSE, "no more processes")]
)
def test_a_template_that_cannot_be_made_fails_the_start_at_once(tmp_path: Path, script: str, told: str) -> None:
    with site(tmp_path, "preload=True, start_timeout=3600", script) as running:
        assert running.status() == NEVER_STARTED
        running.await_text(told)
        running.await_event("start_failed")


def test_where_nothing_can_be_forked_it_says_what_to_do_instead() -> None:
    done = run_script("import os; del os.fork; import ebbpool.prefork")
    assert (
        "ImportError: ebbpool.prefork forks processes, which this system cannot: run one process, with" in done.stderr
    )


@PRELOAD
def test_children_are_replaced_though_nobody_reads_what_is_written(tmp_path: Path, preload: bool) -> None:
    script = """
    # In the parent, and in the template or in each child, whose streams cannot be flushed then.
    sys.stdout.reconfigure(line_buffering=False, write_through=False)
    print("to nobody")

    def serve(child):
        child.serve(Server(child.listener))

    class Silent(logging.Handler):
        def emit(self, record):
            os.write(told, record.getMessage().encode() + b"\\n")

    if __name__ == "__main__":
        told = os.dup(2)
        read, write = os.pipe()
        for number in (1, 2):
            os.dup2(write, number)
        os.close(write)
        os.close(read)
        logging.basicConfig(level=logging.INFO, handlers=[Silent()])
    """
    with site(tmp_path, f"serve, processes=1, preload={preload}", script) as running:
        os.kill(running.child(0), signal.SIGKILL)
        running.child(0, 2)
        assert not running.events("start_failed")
        running.signal(signal.SIGTERM)
        running.await_event("stopped", status=STOPPED)
        assert running.status() in (STOPPED, 120)


FORKS = '''
import multiprocessing
import pty


def end_of(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_fork(call):
    """Runs `call` in a process that is forked from this one, and returns its exit code."""
    pid = os.fork()
    if pid == 0:
        try:
            call()
            os._exit(0)
        finally:
            os._exit(99)
    return end_of(pid)
'''


@PRELOAD
def test_what_a_child_forks_is_on_its_own(tmp_path: Path, preload: bool) -> None:
    """It has the handlers that were there before, gets the signals that come to it, and is no child to the parent."""
    script = """
    killed_at_once = False
    os.register_at_fork(after_in_child=lambda: killed_at_once and os.kill(os.getpid(), signal.SIGTERM))

    def own(number, frame):
        pass

    # The main module is imported before the child takes the signals.
    if __name__ != "__main__":
        signal.signal(signal.SIGHUP, own)
        before = state()

    def compare():
        handlers, descriptor, masked = state()
        expected = {**before[0], signal.SIGUSR1: own, signal.SIGINT: own}
        tell("compared", handlers=handlers == expected, descriptor=descriptor, masked=len(masked))

    def killed(way):
        if way == "multiprocessing":
            process = multiprocessing.get_context("fork").Process(target=signal.pause)
            process.start()
            process.terminate()
            process.join()
            return process.exitcode
        pid = os.fork() if way == "os" else pty.fork()[0]
        if pid == 0:
            signal.pause()
            os._exit(0)
        os.kill(pid, signal.SIGTERM)
        return end_of(pid)

    def kill():
        for way in ("os", "pty", "multiprocessing") * 2:
            tell("ended", way=way, exitcode=killed(way))

    def serve(child):
        global killed_at_once
        pid = os.fork()
        if pid == 0:
            child.ready()
            child.beat()
            return
        tell("ended", way="returned", exitcode=end_of(pid))
        signal.signal(signal.SIGUSR1, own)
        signal.signal(signal.SIGINT, own)
        now = state()
        tell("ended", way="compared", exitcode=in_fork(compare), same=state() == now)
        killed_at_once = True
        tell("ended", way="killed_at_once", exitcode=in_fork(lambda: None))
        killed_at_once = False
        threading.Thread(target=kill, daemon=True).start()
        child.serve(Server(child.listener))
    """
    with site(tmp_path, f"serve, processes=1, preload={preload}", FORKS + dedent(script)) as running:
        running.await_event("ended", way="returned", exitcode=0)
        compared = running.await_event("compared")
        assert compared == {"event": "compared", "handlers": "True", "descriptor": "-1", "masked": "0"}
        running.await_event("ended", way="compared", exitcode=0, same=True)
        running.await_event("ended", way="killed_at_once", exitcode=-signal.SIGTERM)
        for way in ("os", "pty", "multiprocessing"):
            running.await_event("ended", 2, way=way, exitcode=-signal.SIGTERM)
        assert running.ask() == running.child(0)
        assert len(running.events("child_ready")) == 1 and not running.events("child_leaving")
        assert running.stop() == STOPPED


@pytest.mark.parametrize("template_lives", [True, False])
def test_what_a_child_started_does_not_hide_its_death(tmp_path: Path, template_lives: bool) -> None:
    script = """
    def serve(child):
        if not os.path.exists("again"):
            open("again", "w").close()
            process = multiprocessing.get_context("spawn").Process(target=print)
            process.start()
            process.join()
            tell("template", pid=os.getppid(), exitcode=process.exitcode)
            if os.fork() == 0:
                signal.pause()
                os._exit(0)
        child.serve(Server(child.listener))
    """
    with site(tmp_path, "serve, processes=1", FORKS + dedent(script)) as running:
        first = running.child(0)
        template = int(running.await_event("template", exitcode=0)["pid"])
        if not template_lives:
            os.kill(template, signal.SIGKILL)
        os.kill(first, signal.SIGKILL)
        running.child(0, 2)
        assert running.stop() == STOPPED
        running.signal(signal.SIGKILL, to_all=True)


@PRELOAD
def test_what_the_parent_forks_is_on_its_own_as_well(tmp_path: Path, preload: bool) -> None:
    script = """
    def compare():
        after = state()
        tell("compared", same=after == before)
        os.kill(os.getpid(), signal.SIGTERM)

    def fork():
        ready.wait()
        tell("ended", exitcode=in_fork(compare))
        if os.fork() == 0:
            tell("waits")
            signal.pause()

    class Ready(logging.Handler):
        def emit(self, record):
            if getattr(record, "event", None) == "child_ready":
                ready.set()

    if __name__ == "__main__":
        ready = threading.Event()
        logging.getLogger("ebbpool.prefork").addHandler(Ready())
        signal.signal(signal.SIGHUP, lambda *_: None)
        before = state()
        threading.Thread(target=fork, daemon=True).start()
    """
    call = f"serve, processes=1, preload={preload}"
    with site(tmp_path, call, FORKS + dedent(script)) as running:
        assert running.await_event("compared")["same"] == "True"
        running.await_event("ended", exitcode=-signal.SIGTERM)
        running.await_event("waits")
        first = running.child(0)
        assert running.ask() == first and not running.events("signal")
        os.kill(running.pid, signal.SIGKILL)
        eventually(lambda: is_gone(first))
        running.signal(signal.SIGKILL, to_all=True)
