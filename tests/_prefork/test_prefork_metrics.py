"""One endpoint for a whole service: the parent adds up what the pools of its children tell."""

from __future__ import annotations

import os
import signal
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

if os.name != "posix":
    pytest.skip("signals and process groups", allow_module_level=True)

from support.common import TIMEOUT, eventually
from support.prefork import Site, is_gone, site

from ebbpool.prefork import STOPPED

POOL = """
    from ebbpool import AdaptiveExecutor

    tune(REPORT_INTERVAL=0.05)

    def serve(child):
        with AdaptiveExecutor(thread_name_prefix="web") as pool:
            for _ in range(10):
                pool.submit(int).result()
            child.serve(Server(child.listener))
            for _ in range(5):
                pool.submit(int)
"""
METRICS = 'serve, metrics="127.0.0.1:0"'
DONE = 'ebbpool_task_submissions_total{pool="web"}'


def address(running: Site) -> str:
    return running.await_event("metrics")["address"]


def scrape(running: Site) -> dict[str, float]:
    """What the endpoint tells, by name and labels."""
    with urllib.request.urlopen(f"http://{address(running)}/metrics", timeout=TIMEOUT) as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        lines = response.read().decode().splitlines()
    found = {}
    for line in lines:
        if not line.startswith("#"):
            name, _, number = line.rpartition(" ")
            found[name] = float(number)
    return found


@pytest.mark.parametrize("preload", [False, True])
def test_one_endpoint_shows_the_whole_service(tmp_path: Path, preload: bool) -> None:
    with site(tmp_path, f"{METRICS}, preload={preload}", POOL) as running:
        first, _ = running.children()
        eventually(lambda: scrape(running).get(DONE) == 20)
        assert scrape(running)['ebbpool_thread_limit{pool="web"}'] == 512
        running.await_event("metrics", pid=running.pid)
        os.kill(first, signal.SIGSTOP)
        for _ in range(20):
            assert scrape(running)[DONE] == 20, "a child that stands still holds up no scrape"
        os.kill(first, signal.SIGCONT)
        with pytest.raises(urllib.error.HTTPError, match="404") as caught:
            urllib.request.urlopen(f"http://{address(running)}/other", timeout=TIMEOUT)
        caught.value.close()
        host, _, port = address(running).rpartition(":")
        with socket.create_connection((host, int(port)), TIMEOUT) as silent:
            request = urllib.request.Request(f"http://{address(running)}/metrics?x=1", method="HEAD")
            with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
                assert response.read() == b""
            silent.sendall(b"GET /metr")
            assert running.stop() == STOPPED


def test_no_counter_goes_back_while_children_are_replaced(tmp_path: Path) -> None:
    over = threading.Event()
    seen = [0.0]

    def watch() -> None:
        while not over.is_set():
            seen.append(scrape(running).get(DONE, 0))

    with site(tmp_path, f"{METRICS}, metrics_sample=1", POOL) as running:
        running.children()
        eventually(lambda: scrape(running).get(DONE) == 20)
        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            for kill in (1, 2):
                os.kill(running.child(0, kill), signal.SIGKILL)
                running.child(0, kill + 1)
                eventually(lambda: scrape(running)[DONE] == 20 + 10 * kill)  # noqa: B023  (used at once)
            running.signal(signal.SIGHUP)
            running.await_event("reload_done")
            # Those that stop by themselves tell also what they did at their very end.
            eventually(lambda: scrape(running)[DONE] == 40 + 2 * 15)
            assert scrape(running)['ebbpool_task_run_duration_seconds_count{pool="web"}'] >= 2 * 5
        finally:
            over.set()
            watcher.join(TIMEOUT)
        assert seen == sorted(seen)
        assert running.stop() == STOPPED


def test_children_end_although_the_parent_does_not_read(tmp_path: Path) -> None:
    with site(tmp_path, METRICS, POOL.replace("0.05", "0.0001")) as running:
        children = running.children()
        eventually(lambda: scrape(running).get(DONE) == 20)
        running.signal(signal.SIGSTOP)
        # What has to pass is time: until there is no room for another report.
        threading.Event().wait(1.0)
        for child in children:
            os.kill(child, signal.SIGTERM)
        eventually(lambda: all(map(is_gone, children)), "they do not wait for it")
        running.signal(signal.SIGCONT)
        running.await_event("child_exited", 2, exitcode=0)
        assert running.stop() == STOPPED


def test_the_parent_never_forks_itself(tmp_path: Path) -> None:
    """It has threads, and a fork would copy whatever lock one of them holds."""
    script = (
        POOL
        + """
    if __name__ == "__main__":
        os.register_at_fork(before=lambda: say("forked"))
    """
    )
    with site(tmp_path, METRICS, script) as running:
        running.children()
        eventually(lambda: scrape(running).get(DONE) == 20)
        os.kill(running.child(0), signal.SIGKILL)
        running.child(0, 2)
        eventually(lambda: scrape(running).get(DONE) == 30)
        assert running.stop() == STOPPED
        assert "forked" not in running.lines


def test_without_metrics_nothing_listens_and_nothing_is_imported_for_it(tmp_path: Path) -> None:
    script = """
    def serve(child):
        say(f"metrics {any('._metrics' in name for name in sys.modules)}")
        child.serve(Server(child.listener))
    """
    with site(tmp_path, "serve, processes=1", script) as running:
        running.children(1)
        running.await_text("metrics False")
        assert not running.events("metrics")
        assert running.stop() == STOPPED


def test_a_taken_address_is_told_before_any_child_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with site(tmp_path, f'metrics="127.0.0.1:{port}"') as running:
            assert running.status() == 1
            running.await_text(f"cannot listen on '127.0.0.1:{port}'")
            assert not running.events("child_started")
