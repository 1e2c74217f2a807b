"""The workers that are ready made, and servers that take the pool as it is: against the real ones."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from support.common import TIMEOUT, Background, eventually
from support.pages import ROOT, blocks_of, changed, changes_of, skip_without_packages
from support.server import program, reserved_port

APP = """
import os
import threading
import ebbpool

if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
    from ebbpool.prometheus import PoolCollector
    PoolCollector()
meeting = threading.Barrier(20)

def app(environ, start_response):
    (pool,) = ebbpool.pools()
    name, stats = threading.current_thread().name.partition("_")[0], pool.stats()
    body = f"{os.getpid()} {stats.submitted} {name} {stats.max_workers}"
    path = environ["PATH_INFO"]
    if path == "/meet":
        meeting.wait(20)
    if path == "/slow":
        with open("begun.part", "w") as file:
            file.write(body)
        os.rename("begun.part", "begun")
        open("go on").close()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body.encode()]
"""
HOOKS = """
from prometheus_client.multiprocess import mark_process_dead

def child_exit(server, worker):
    mark_process_dead(worker.pid)
"""


def asked(port: int, path: str) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3 * TIMEOUT)
    connection.request("GET", path)
    return connection


def get(port: int, path: str) -> str:
    with closing(asked(port, path)) as connection:
        return connection.getresponse().read().decode()


def pid_of(answer: str) -> str:
    return answer.split()[0]


def answer(port: int, path: str = "/") -> str:
    """Return what is answered; nothing if nobody is there, or a worker that ends."""
    try:
        return get(port, path)
    except OSError:
        return ""


@contextmanager
def gunicorn(
    folder: Path, *arguments: str, worker: str = "ebbpool.gunicorn.AdaptiveThreadWorker"
) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Serve APP for the length of the block, at a port that is yielded with the process once it answers.

    A slow request waits until the test writes to the pipe "go on".
    """
    skip_without_packages("import gunicorn")
    os.mkfifo(folder / "go on")
    (folder / "application.py").write_text(APP, encoding="utf-8")
    with reserved_port() as port:
        command = ["-m", "gunicorn", "-k", worker, "-b", f"127.0.0.1:{port}", "--no-control-socket", *arguments]
        with program(*command, "application:app", cwd=folder) as process:
            eventually(lambda: answer(port), "gunicorn answers", 3 * TIMEOUT)
            yield port, process


def test_gunicorn(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with gunicorn(tmp_path, "--keep-alive", "5", "--log-file", str(log)) as (port, process):
        # gunicorn's own default is one thread.
        assert get(port, "/").endswith(" gunicorn 256")
        assert "at most 256 threads" in log.read_text()
        together = [Background(lambda: get(port, "/meet")) for _ in range(20)]
        assert {client.join().split()[2] for client in together} == {"gunicorn"}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
        for _ in range(3):
            connection.request("GET", "/")
            before = pid_of(connection.getresponse().read().decode())
        connection.close()
        slow = Background(lambda: get(port, "/slow"))
        eventually((tmp_path / "begun").exists, "the slow request has begun")
        # A reload: what runs is answered by the worker that began it, and the next request by another.
        process.send_signal(signal.SIGHUP)
        eventually(lambda: answer(port).split()[:1] not in ([], [before]), "another worker answers")
        (tmp_path / "go on").write_text("")
        assert pid_of(slow.join()) == before
        process.terminate()
        assert process.wait(3 * TIMEOUT) == 0


@pytest.mark.parametrize(
    ("settings", "next_status"),
    [("max_wait=0.5", 503), ("max_queue=1, when_full='reject'", 200)],
    ids=["wait", "queue"],
)
def test_gunicorn_answers_what_the_pool_refuses(tmp_path: Path, settings: str, next_status: int) -> None:
    worker = "from ebbpool.gunicorn import AdaptiveThreadWorker as A\nclass Worker(A): settings = dict(max_workers=1, "
    (tmp_path / "workers.py").write_text(worker + f"{settings})\n", encoding="utf-8")
    # Kept alive, a connection that the client closes would take the place in the queue to find that out.
    arguments = ["--threads", "30", "--keep-alive", "0"]
    with gunicorn(tmp_path, *arguments, worker="workers.Worker") as (port, _):
        with closing(asked(port, "/slow")) as slow:
            eventually((tmp_path / "begun").exists, "the slow request has begun")
            # The worker takes connections one after the other, so this one has the place in the queue.
            with closing(asked(port, "/")) as next_one, closing(asked(port, "/")) as refused:
                answer = refused.getresponse()
                assert answer.status == 503 and int(answer.getheader("Retry-After", 0)) >= 1
                (tmp_path / "go on").write_text("")
                assert next_one.getresponse().status == next_status
            answered_by = pid_of(slow.getresponse().read().decode())
        assert pid_of(get(port, "/")) == answered_by


def test_a_connection_that_says_nothing_takes_no_thread(tmp_path: Path) -> None:
    """With one thread, each would hold it for five seconds; the pool counts only what was sent."""
    worker = "from ebbpool.gunicorn import AdaptiveThreadWorker as A\nclass Worker(A): settings = dict(max_workers=1)"
    (tmp_path / "workers.py").write_text(worker, encoding="utf-8")
    with gunicorn(tmp_path, "--keep-alive", "0", worker="workers.Worker") as (port, process), ExitStack() as stack:
        before = int(get(port, "/").split()[1])
        silent = [http.client.HTTPConnection("127.0.0.1", port, timeout=3 * TIMEOUT) for _ in range(10)]
        for connection in silent:
            stack.enter_context(closing(connection))
            connection.connect()
        assert int(get(port, "/").split()[1]) == before + 1
        for number, connection in enumerate(silent[:5]):
            connection.request("GET", "/")
            assert int(connection.getresponse().read().split()[1]) == before + 2 + number
        process.terminate()
        assert process.wait(3 * TIMEOUT) == 0


def test_prometheus_has_the_sum_over_the_workers_of_gunicorn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_packages("import prometheus_client")
    from prometheus_client import CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector

    def shown(name: str) -> float | None:
        return registry.get_sample_value(name, {"pool": "gunicorn"})

    def counted(*answers: str) -> bool:
        return shown("ebbpool_task_submissions_total") == sum(int(answer.split()[1]) for answer in answers)

    files = tmp_path / "files"
    files.mkdir()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(files))
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(files))
    (tmp_path / "gunicorn.conf.py").write_text(HOOKS, encoding="utf-8")
    # A worker that has its one connection takes no other, so each request has a worker of its own.
    arguments = ["--workers", "2", "--threads", "2", "--worker-connections", "1", "--keep-alive", "0"]
    with gunicorn(tmp_path, *arguments) as (port, _), closing(asked(port, "/slow")) as slow:
        eventually((tmp_path / "begun").exists, "the slow request has begun")
        first, second = (tmp_path / "begun").read_text(), get(port, "/")
        eventually(lambda: counted(first, second), "both workers are counted")
        os.kill(int(pid_of(second)), signal.SIGKILL)
        third = get(port, "/")
        assert len({*map(pid_of, (first, second, third))}) == 3
        eventually(lambda: counted(first, second, third), "the dead worker is counted, and its replacement")
        eventually(lambda: shown("ebbpool_thread_limit") == 4, "the dead worker has no threads")
        (tmp_path / "go on").write_text("")
        assert slow.getresponse().status == 200


def test_prometheus_has_the_sum_over_the_workers_of_uvicorn(tmp_path: Path) -> None:
    def shown(name: str, number: float) -> bool:
        return f'ebbpool_{name}{{pool="web"}} {number}\n' in answer(port, "/metrics")

    page = ROOT / "docs/integrations/fastapi.md"
    (change,) = changes_of(page)
    code = changed(blocks_of(page)[1], change)
    skip_without_packages(f"import uvicorn\n{code}")
    (tmp_path / "app.py").write_text(code, encoding="utf-8")
    (tmp_path / "metrics").mkdir()
    with reserved_port() as port:
        command = ["-m", "uvicorn", "app:app", "--port", str(port), "--workers", "2", "--log-level", "warning"]
        with program(*command, cwd=tmp_path, PROMETHEUS_MULTIPROC_DIR="metrics"):
            eventually(lambda: shown("thread_limit", 512.0), "both workers are there", 6 * TIMEOUT)
            for _ in range(5):
                assert get(port, "/report") == '{"status":"done"}'
            # The endpoint and its response model, each time.
            eventually(lambda: shown("task_submissions_total", 10.0), "all are counted")


ASGI = """
import asyncio
import os
import threading
import ebbpool.anyio

ebbpool.anyio.install()
ebbpool.install()

async def app(scope, receive, send):
    if scope["type"] == "http":
        name = await asyncio.to_thread(lambda: threading.current_thread().name.partition("_")[0])
        [pool] = ebbpool.pools()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        body = f"{os.getpid()} {name} {pool.stats().max_workers} first"
        await send({"type": "http.response.body", "body": body.encode()})
"""


@pytest.mark.parametrize("how", [["--workers", "2"], ["--reload"]], ids=["workers", "reload"])
def test_uvicorn_and_its_children_run_on_a_pool_that_the_app_may_ask_for_again(tmp_path: Path, how: list[str]) -> None:
    file = tmp_path / "application.py"
    file.write_text(ASGI, encoding="utf-8")
    with reserved_port() as port:
        command = ["run", "--max-workers", "7", "-m", "uvicorn", "application:app", "--port", str(port), *how]
        with program("-m", "ebbpool", *command, cwd=tmp_path) as process:
            eventually(lambda: answer(port), "uvicorn answers", 3 * TIMEOUT)
            found = {get(port, "/")}
            if "--reload" in how:
                file.write_text(ASGI.replace("first", "second"), encoding="utf-8")
                eventually(lambda: "second" in answer(port), "the reloaded app answers", 3 * TIMEOUT)
            else:
                eventually(lambda: found.add(get(port, "/")) or len(found) == 2, "both workers answer", 3 * TIMEOUT)
            found.add(get(port, "/"))
    assert len({*map(pid_of, found)} - {str(process.pid)}) == 2
    assert {tuple(each.split()[1:3]) for each in found} == {("ebbpool", "7")}


TASKS = """
import os
import threading
from celery import Celery

app = Celery("tasks", broker="filesystem://", backend=f"file://{os.getcwd()}/results")
app.conf.broker_transport_options = {"data_folder_in": "messages", "data_folder_out": "messages"}

@app.task
def work():
    return threading.current_thread().name
"""


def test_celery_is_told_on_its_command_line(tmp_path: Path) -> None:
    skip_without_packages("import celery")
    (tmp_path / "tasks.py").write_text(TASKS, encoding="utf-8")
    for folder in ("messages", "results"):
        (tmp_path / folder).mkdir()
    worker = ["worker", "--pool", "custom", "--autoscale", "10,2", "--loglevel", "error"]
    custom = "ebbpool.celery:TaskPool"
    with program("-m", "celery", "-A", "tasks", *worker, cwd=tmp_path, CELERY_CUSTOM_WORKER_POOL=custom) as process:
        ask = f"import tasks; print(tasks.work.delay().get(timeout={TIMEOUT}))"
        answer = subprocess.check_output([sys.executable, "-c", ask], cwd=tmp_path, text=True)
        assert answer.startswith("celery_")
    assert process.returncode == 0
