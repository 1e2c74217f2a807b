"""Real processes under the watchdog: deaths, signals, deadlines, and what clients see of them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

if os.name != "posix":
    pytest.skip("signals and process groups", allow_module_level=True)

import resource

from support.common import STACKS, TIMEOUT, eventually
from support.prefork import Load, answer_on, is_gone, nobody_is_left, site

from ebbpool.prefork import NEVER_STARTED, STOPPED, UNFINISHED

PRELOAD = pytest.mark.parametrize("preload", [False, True])


@pytest.mark.parametrize(
    ("preload", "number", "to_all"),
    [(False, signal.SIGTERM, False), (False, signal.SIGINT, True), (True, signal.SIGTERM, True)],
)
def test_prefork_serves_and_stops_gracefully(
    tmp_path: Path, preload: bool, number: signal.Signals, to_all: bool
) -> None:
    with site(tmp_path, f"serve_and_tell, preload={preload}") as running:
        children = running.children()
        assert len({running.pid, *children}) == 3
        with running.begin() as connection:
            running.signal(number, to_all)
            running.await_event("asked", 2)
            assert answer_on(connection) in children, "what was begun is finished"
        assert running.status() == STOPPED
        assert all(map(is_gone, children))
        running.await_event("child_exited", 2, exitcode=0)
        assert running.await_event("stopped")["status"] == "0"
        assert not any("Traceback" in line for line in running.lines), running.lines
        with pytest.raises(ConnectionRefusedError):
            running.connect()


@PRELOAD
def test_a_killed_child_is_replaced_and_no_connection_refused(tmp_path: Path, preload: bool) -> None:
    with site(tmp_path, f"preload={preload}") as running:
        running.children()
        with Load(running, clients := 4) as load:
            for kill in range(1, 4):
                load.await_answers()
                os.kill(running.child(0, kill), signal.SIGKILL)
                new = running.child(0, kill + 1)
                while new not in load.await_answers(1):
                    pass
        assert not any(isinstance(error, ConnectionRefusedError) for error in load.errors)
        assert len(load.errors) <= 3 * clients, "no more than what the dead had in hand"
        assert running.stop() == STOPPED


@pytest.mark.skipif(sys.platform != "linux", reason="the limits of another process cannot be set there")
@PRELOAD
def test_without_descriptors_a_parent_or_template_goes_on_and_replaces_the_dead_once_it_can(
    tmp_path: Path, preload: bool
) -> None:
    def children_of_the_parent() -> list[int]:
        listed = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text()
        return [int(child) for child in listed.split()]

    with site(tmp_path, f"preload={preload}") as running:
        first, second = running.children()
        starter = children_of_the_parent()[0] if preload else running.pid
        soft, hard = resource.prlimit(starter, resource.RLIMIT_NOFILE)
        resource.prlimit(starter, resource.RLIMIT_NOFILE, (3 if preload else 4, hard))
        os.kill(first, signal.SIGKILL)
        failed = running.await_event("start_failed", 1 if preload else 2, number=0)
        assert not preload or failed["error"] == "'OSError: [Errno 24] Too many open files'"
        assert running.ask() == second
        resource.prlimit(starter, resource.RLIMIT_NOFILE, (soft, hard))
        running.child(0, 2)
        assert not preload or children_of_the_parent() == [starter]
        assert running.stop() == STOPPED


@pytest.mark.skipif(sys.platform != "linux", reason="there are no subreapers there")
def test_orphans_are_reaped_and_the_parent_s_own_processes_are_not(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    script = """
    import ctypes
    import multiprocessing
    import subprocess

    def serve_and_leave_orphans(child):
        for command in ("true", "setsid true", "exit 1"):
            done = subprocess.run(["sh", "-c", f"{command} & echo $!"], stdout=subprocess.PIPE, text=True, check=True)
            tell("orphan", its=done.stdout.strip())
        serve(child)

    def look():
        own = [subprocess.Popen(["sh", "-c", f"exit {code}"]) for code in (3, 4)]
        process = multiprocessing.get_context("spawn").Process(target=sys.exit, args=(5,))
        process.start()
        with open("go") as go:
            go.read()
        codes = [each.wait() for each in own]
        process.join()
        tell("own", codes=",".join(map(str, [*codes, process.exitcode])))

    if __name__ == "__main__":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
        threading.Thread(target=look, daemon=True).start()
    """
    with site(tmp_path, "serve_and_leave_orphans, processes=1", script) as running:
        for count in (1, 2, 3):
            orphan = running.await_event("orphan", count)["its"]
            eventually(lambda: not Path(f"/proc/{orphan}").exists())  # noqa: B023  (used at once)
        (tmp_path / "go").write_text("")
        running.await_event("own", codes="3,4,5")
        assert running.stop() == STOPPED


@PRELOAD
def test_children_end_gracefully_when_their_parent_is_killed(tmp_path: Path, preload: bool) -> None:
    script = """
    def serve_and_hear(child):
        signal.signal(signal.SIGTERM, lambda *_: tell("heard"))
        serve_and_tell(child)
    """
    with site(tmp_path, f"serve_and_hear, preload={preload}", script) as running:
        children = running.children()
        with running.begin() as connection:
            running.signal(signal.SIGKILL)
            assert running.status() == -signal.SIGKILL
            running.await_event("asked", 2)
            running.await_event("heard", 2)
            assert answer_on(connection) in children, "what was begun is finished"
        eventually(lambda: nobody_is_left(running.pid))


@PRELOAD
def test_hang_up_replaces_every_child_and_nobody_notices(tmp_path: Path, preload: bool) -> None:
    with site(tmp_path, f"preload={preload}") as running:
        old = running.children()
        with Load(running) as load:
            load.await_answers()
            running.signal(signal.SIGHUP)
            running.await_event("reload_done")
            for number in (0, 1):
                running.await_event("child_exited", number=number, exitcode=0)
            new = {running.child(0, 2), running.child(1, 2)}
            assert load.await_answers() <= new
        assert not load.errors
        assert all(map(is_gone, old))
        assert running.stop() == STOPPED


def test_a_signal_is_heard_although_it_does_not_interrupt_the_wait_and_no_limit_is_too_long(tmp_path: Path) -> None:
    script = """
    if __name__ == "__main__":
        # The signal then comes to this thread, and the main thread waits on.
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    """
    limits = "graceful_timeout=1e12, heartbeat_timeout=1e9, start_timeout=1e12"
    with site(tmp_path, f"processes=1, {limits}", script) as running:
        first = running.child(0)
        running.signal(signal.SIGHUP)
        running.await_event("reload_done")
        running.await_event("child_exited", number=0, pid=first)
        assert running.ask() == running.child(0, 2)
        assert running.stop() == STOPPED


def test_a_child_that_stopped_to_run_is_replaced(tmp_path: Path) -> None:
    with site(tmp_path, "heartbeat_timeout=1.0") as running:
        children = running.children()
        os.kill(children[1], signal.SIGSTOP)
        running.await_event("child_unresponsive", number=1, pid=children[1])
        running.await_event("child_exited", number=1, pid=children[1], exitcode=-9)
        running.child(1, 2)
        assert running.stop() == STOPPED


def test_a_loop_that_does_not_turn_is_killed_and_its_stack_shown(tmp_path: Path) -> None:
    script = """
    class Shown(logging.Handler):
        def emit(self, record):
            open("shown", "w").close()

    def stuck_for_ever():
        threading.Event().wait()

    def serve(child):
        logging.basicConfig(format="%(message)s")
        logging.getLogger().addHandler(Shown())
        child.ready()
        if os.path.exists("shown"):
            say("event=steady")
            child.stopping.wait()
        else:
            # If it is killed before it has said where it sticks, the next one does the same.
            child.beat()
            stuck_for_ever()
    """
    with site(tmp_path, "serve, processes=1, heartbeat_timeout=1.0", script) as running:
        stuck = running.await_event("child_silent", number=0)["pid"]
        running.await_text("in stuck_for_ever" if STACKS else "(no stack")
        running.await_event("child_unresponsive", number=0, pid=stuck)
        running.await_event("steady")
        assert running.stop() == STOPPED


def test_code_that_never_beats_is_held_to_its_interpreter_and_replaced_when_it_returns(tmp_path: Path) -> None:
    script = """
    def serve(child):
        child.ready()
        # More than twice as long as one that has to give a sign would live.
        child.stopping.wait(1.5)
    """
    with site(tmp_path, "serve, processes=1, heartbeat_timeout=0.6", script) as running:
        # One that did not get to run for so long is killed, and the next one does the same.
        left = running.await_event("child_leaving", number=0)["pid"]
        served = [event["pid"] for event in running.events("child_ready", number=0)]
        running.child(0, served.index(left) + 2)
        running.await_event("child_exited", number=0, pid=left, exitcode=0)
        assert running.stop() == STOPPED


@pytest.mark.parametrize("parent_lives", [True, False])
def test_a_child_that_does_not_stop_ends_at_the_deadline(tmp_path: Path, parent_lives: bool) -> None:
    # Where the parent is to kill it, which may be late, it must not end by itself before.
    script = "tune(LAST_WORD=10.0)\n" if parent_lives else ""
    with site(tmp_path, "graceful_timeout=0.3, processes=1", script) as running:
        running.child(0)
        with running.begin():
            running.signal(signal.SIGTERM if parent_lives else signal.SIGKILL)
            eventually(lambda: nobody_is_left(running.pid))
        if parent_lives:
            running.await_event("child_overdue", number=0)
            running.await_event("child_exited", number=0, exitcode=-9)
            assert running.status() == UNFINISHED


@pytest.mark.parametrize("numbers", [(signal.SIGTERM, signal.SIGINT), (signal.SIGQUIT,)])
def test_prefork_can_be_stopped_at_once(tmp_path: Path, numbers: tuple[signal.Signals, ...]) -> None:
    with site(tmp_path) as running:
        running.children()
        with running.begin():
            for count, number in enumerate(numbers):
                running.signal(number)
                running.await_event("signal", count + 1)
            assert running.status() == UNFINISHED


def test_a_child_that_is_asked_to_stop_finishes_and_is_replaced(tmp_path: Path) -> None:
    with site(tmp_path, "processes=1") as running:
        first = running.child(0)
        with running.begin() as connection:
            os.kill(first, signal.SIGTERM)
            running.child(0, 2)
            assert answer_on(connection) == first
        running.await_event("child_exited", pid=first, exitcode=0)
        assert running.stop() == STOPPED


def test_children_outlive_the_template(tmp_path: Path) -> None:
    script = """
    def serve(child):
        tell("template", pid=os.getppid())
        child.serve(Server(child.listener))
    """
    with site(tmp_path, "serve, heartbeat_timeout=10.0", script) as running:
        children = running.children()
        os.kill(int(running.await_event("template")["pid"]), signal.SIGKILL)
        assert running.ask() in children
        os.kill(children[0], signal.SIGKILL)
        new = running.child(0, 2)
        assert not is_gone(children[1]) and not running.events("child_exited", number=1)
        with running.begin() as connection:
            running.signal(signal.SIGTERM)
            running.await_event("stopping")
            assert answer_on(connection) in (new, children[1])
        assert running.status() in (STOPPED, UNFINISHED)
        # Its end of the pipe, which is all that told of its end, was closed a little before that.
        eventually(lambda: is_gone(children[1]))


def test_handlers_and_whatever_else_are_as_before(tmp_path: Path) -> None:
    script = """
    def stopper(parent, child):
        child.ready()
        os.kill(parent, signal.SIGTERM)
        child.stopping.wait()

    if __name__ == "__main__":
        import socket
        listener = socket.create_server(("127.0.0.1", 0))
        ends = socket.socketpair()
        ends[1].setblocking(False)
        signal.set_wakeup_fd(ends[1].fileno())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: None)
        before = state(), threading.active_count()
        for _ in range(2):
            status = prefork.run(functools.partial(stopper, os.getpid()), bind=listener, processes=1)
            tell("same", same=(state(), threading.active_count()) == before, status=status)
        say(f"event=kept port={listener.getsockname()[1]}")
    """
    with site(tmp_path, None, script) as running:
        assert running.status() == 0
        assert running.await_event("same", 2) == {"event": "same", "same": "True", "status": "0"}
        running.await_event("kept")


def test_callbacks_run_in_a_thread_of_their_own(tmp_path: Path) -> None:
    script = """
    def note(what):
        tell("told", what=what, main=threading.current_thread() is threading.main_thread())

    def fails():
        raise ValueError("a callback that fails")

    def serve(child):
        child.on_stop(fails)
        child.on_stop(functools.partial(note, "early"))
        child.ready()
        child.stopping.wait()
        late = threading.Event()
        child.on_stop(functools.partial(note, "late"))
        child.on_stop(late.set)
        late.wait()
        child.on_stop(functools.partial(note, f"last, with {state()[1]} to wake"))
    """
    with site(tmp_path, "serve, processes=1", script) as running:
        running.child(0)
        assert running.stop() == STOPPED
        assert running.await_event("told", what="early")["main"] == "False"
        assert running.await_event("told", what="late")["main"] == "False"
        # The end of the process waits for it. An event loop in the child finds no other that signals wake.
        running.await_text("what=last, with -1 to wake")
        running.await_text("ValueError: a callback that fails")


def test_a_server_on_the_pool_says_which_handlers_it_could_not_finish(tmp_path: Path) -> None:
    script = """
    from ebbpool.socketserver import AdaptivePoolTCPServer

    # What is left of the thirty seconds is there for its last words.
    tune(SHUTDOWN_SHARE=0.01)

    def serve(child):
        child.serve(AdaptivePoolTCPServer.from_socket(child.listener, Handler))
    """
    with site(tmp_path, "serve, processes=1, graceful_timeout=30.0", script) as running:
        assert running.ask() == running.child(0)
        with running.begin():
            running.signal(signal.SIGTERM)
            running.await_text("TimeoutError")
            running.await_text("in handle" if STACKS else "(no stack")
            assert running.stop() == UNFINISHED


def test_the_main_module_has_to_be_guarded(tmp_path: Path) -> None:
    with site(tmp_path, None, "go()") as running:
        assert running.status() == NEVER_STARTED
        running.await_text("if __name__ == '__main__'")


def test_a_unix_socket_outlives_a_child_and_is_removed_in_the_end(tmp_path: Path) -> None:
    with site(tmp_path, "processes=1, bind='unix:s'") as running:
        for count in (1, 2):
            child = running.child(0, count)
            with socket.socket(socket.AF_UNIX) as client, contextlib.chdir(tmp_path):
                client.settimeout(TIMEOUT)
                client.connect("s")
                assert answer_on(client) == child
            if count == 1:
                os.kill(child, signal.SIGKILL)
        assert running.stop() == STOPPED
    assert not (tmp_path / "s").exists()
