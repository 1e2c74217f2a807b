"""Signals that are none of prefork's, and processes that a child or the parent forks: theirs are theirs."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from textwrap import dedent

import pytest

if os.name != "posix":
    pytest.skip("signals and forks", allow_module_level=True)

from support.common import eventually
from support.prefork import is_gone, site

from ebbpool.prefork import STOPPED

PRELOAD = pytest.mark.parametrize("preload", [False, True])

FORKS = '''
import multiprocessing
import pty


def state():
    """What becomes of signals here."""
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    descriptor = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(descriptor)
    return handlers, descriptor, signal.pthread_sigmask(signal.SIG_BLOCK, [])


def in_fork(call):
    """Runs `call` in a process that is forked from this one, and returns its exit code."""
    pid = os.fork()
    if pid == 0:
        try:
            call()
            os._exit(0)
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def tell(what, **values):
    say(" ".join([f"event={what}", *(f"{key}={value}" for key, value in values.items())]))
'''


def test_a_signal_that_somebody_else_handles_is_none_of_its_business(tmp_path: Path) -> None:
    script = """
    def note(number, frame):
        say("event=noted")

    # No member of signal.Signals, where there is such a thing.
    REALTIME = signal.SIGRTMIN + 1 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2

    for number in (REALTIME, signal.SIGUSR1):
        signal.signal(number, note)
    """
    realtime = signal.SIGRTMIN + 1 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
    with site(tmp_path, "processes=1", script) as running:
        first = running.child(0)
        for count, number in enumerate((realtime, signal.SIGUSR1)):
            for pid in (running.pid, first):
                os.kill(pid, number)
            running.await_event("noted", 2 * count + 2)
        assert running.ask() == first and not running.events("signal")
        assert running.stop() == STOPPED


@PRELOAD
def test_a_signal_that_comes_while_the_interpreter_ends_is_too_late(tmp_path: Path, preload: bool) -> None:
    script = """
    class Last:
        def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGTERM):
            kill(pid, number)

    if __name__ != "__main__":
        last = Last()
    """
    with site(tmp_path, f"processes=1, preload={preload}", script) as running:
        running.children(1)
        assert running.stop() == STOPPED
        running.await_event("child_exited", number=0, exitcode=0)


@pytest.mark.parametrize(("preload", "way"), [(False, "os"), (False, "pty"), (True, "multiprocessing")])
def test_a_signal_to_what_a_child_forked_ends_that_and_nothing_else(tmp_path: Path, preload: bool, way: str) -> None:
    script = """
    def forked(way):
        if way == "multiprocessing":
            process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
            process.start()
            process.terminate()
            process.join()
            return process.exitcode
        pid = os.fork() if way == "os" else pty.fork()[0]
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        os.kill(pid, signal.SIGTERM)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def fork(way):
        for _ in range(3):
            tell("ended", exitcode=forked(way))

    def serve(way, child):
        threading.Thread(target=fork, args=(way,), daemon=True).start()
        child.serve(Server(child.listener))
    """
    settings = f"functools.partial(serve, {way!r}), processes=1, preload={preload}"
    with site(tmp_path, settings, FORKS + dedent(script)) as running:
        running.await_event("ended", 3, exitcode=-signal.SIGTERM)
        assert running.ask() == running.child(0)
        assert not running.events("child_leaving")
        assert running.stop() == STOPPED


def test_not_even_a_signal_that_comes_at_once_is_taken_for_the_childs(tmp_path: Path) -> None:
    script = """
    os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))

    def serve(child):
        tell("ended", exitcode=in_fork(lambda: None))
        child.serve(Server(child.listener))
    """
    with site(tmp_path, "serve, processes=1", FORKS + dedent(script)) as running:
        running.await_event("ended", exitcode=-signal.SIGTERM)
        assert running.ask() == running.child(0)
        assert not running.events("child_leaving")
        assert running.stop() == STOPPED


@PRELOAD
def test_what_a_child_forks_has_the_handlers_that_were_there_before(tmp_path: Path, preload: bool) -> None:
    script = """
    def own(number, frame):
        pass

    # The main module is imported before the child takes the signals.
    if __name__ != "__main__":
        signal.signal(signal.SIGTTIN, own)
        before = state()

    def compare():
        after = state()
        expected = {**before[0], signal.SIGUSR1: own, signal.SIGTTOU: own}
        tell("compared", handlers=after[0] == expected, descriptor=after[1])
        tell("masked", mask=len(after[2]))

    def serve(child):
        signal.signal(signal.SIGUSR1, own)
        signal.signal(signal.SIGTTOU, own)
        now = state()
        tell("ended", exitcode=in_fork(compare), same=state() == now)
        child.serve(Server(child.listener))
    """
    with site(tmp_path, f"serve, processes=1, preload={preload}", FORKS + dedent(script)) as running:
        assert running.await_event("compared") == {"event": "compared", "handlers": "True", "descriptor": "-1"}
        assert running.await_event("masked")["mask"] == "0"
        assert running.await_event("ended")["same"] == "True"
        assert running.ask() == running.child(0)
        assert running.stop() == STOPPED


def test_what_a_child_forks_may_return_from_its_function(tmp_path: Path) -> None:
    script = """
    def serve(child):
        pid = os.fork()
        if pid == 0:
            child.ready()
            child.beat()
            return
        tell("ended", exitcode=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        child.serve(Server(child.listener))
    """
    with site(tmp_path, "serve, processes=1", FORKS + dedent(script)) as running:
        assert running.await_event("ended")["exitcode"] == "0"
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
                time.sleep(60)
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
        running.signal_all(signal.SIGKILL)


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
            time.sleep(60)

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
        running.signal_all(signal.SIGKILL)
