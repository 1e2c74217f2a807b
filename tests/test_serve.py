"""``python -m ebbpool serve``: what clients get from it, limits, wrong use, how it ends."""

from __future__ import annotations

import errno
import functools
import http.client
import http.server
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from support.common import A_MOMENT, STACKS, TIMEOUT, Background, environment, eventually, python
from support.prefork import nobody_is_left, skip_without_ipv6
from support.server import looping, read_all, reserved_port

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the platform has no signals to end a process cleanly")
PROCESSES = pytest.mark.parametrize("processes", [(), ("--processes", "2")])
GET = b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n"
SIGNALS = [signal.SIGINT, signal.SIGTERM]
PATIENCE = 40.0
"""Seconds that an interpreter may take to start, or to end, on a busy machine."""


class Served:
    """A running server: where it listens, what it wrote."""

    def __init__(self, process: subprocess.Popen[str], log: Path, line: str) -> None:
        self.process = process
        self._log = log
        self.line = line
        self.port = int(line.split(" port ")[1].split()[0])
        self.url = line[line.index("(") + 1 : line.index(")")]

    @property
    def log(self) -> str:
        """What it has written to standard error."""
        return self._log.read_text()

    def connect(self, host: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection((host, self.port), timeout=PATIENCE)

    def get(self, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
        return get(self.port, path, method)

    def refuses(self) -> bool:
        """Tell whether nobody listens any more."""
        try:
            self.connect().close()
        except ConnectionRefusedError:
            return True
        except ConnectionResetError:
            pass
        return False

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; return the exit status and what came on standard output after the first line."""
        self.process.send_signal(number)
        return self.end()

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit status and what came on standard output after the first line."""
        rest, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, rest


def get(port: int, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    """Make one request on a connection of its own; return status, headers and body."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as client:
        client.request(method, path)
        with client.getresponse() as response:
            return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()


def read_until(connection: socket.socket, end: bytes) -> bytes:
    """Return what comes until `end`, which has to come."""
    received = b""
    while not received.endswith(end):
        piece = connection.recv(65536)
        assert piece, received
        received += piece
    return received


@contextmanager
def started(command: list[str], directory: Path, log: Path) -> Iterator[Served]:
    """Run a server in `directory` until the block is left; kill it, and all that it started, if it has not ended."""
    with log.open("w") as errors:
        process: subprocess.Popen[str] = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment(),
            cwd=directory,
            start_new_session=True,
        )
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    # Where both streams are one, a line of the log may come before it.
    reader = Background(lambda: next((line for line in lines if " port " in line), ""))
    try:
        assert reader.over.wait(PATIENCE), "the server did not say where it listens"
        line = reader.join()
        assert line, f"the server ended at once: {log.read_text()}"
        yield Served(process, log, line)
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)
        reader.over.wait(PATIENCE)
        process.stdout.close()


@contextmanager
def serving(directory: Path, *arguments: str) -> Iterator[Served]:
    """Serve `directory` at a free port of 127.0.0.1; at the end of the block a SIGTERM has to end it with status 0."""
    bind = [] if "-b" in arguments else ["-b", "127.0.0.1"]
    command = [sys.executable, "-m", "ebbpool", "serve", "0", *bind, *arguments]
    # Beside the directory and not in it, where the listing would show it.
    log = directory.with_name(f"{directory.name}.log")
    with started(command, directory, log) as served:
        yield served
        if served.process.poll() is None:
            assert served.stop() == (0, ""), served.log
        eventually(lambda: nobody_is_left(served.process.pid), "no process is left")
        assert "Traceback" not in served.log, served.log
        assert "Warning" not in served.log, served.log


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A directory to serve."""
    root = tmp_path / "site"
    (root / "sub" / "deeper").mkdir(parents=True)
    (root / "indexed").mkdir()
    (root / "hello.txt").write_bytes(b"hello\n")
    (root / "empty").write_bytes(b"")
    (root / "a file & more.html").write_bytes(b"<p>spaced</p>")
    (root / "sub" / "ümläut.txt").write_bytes(b"umlaut")
    (root / "sub" / "deeper" / "page.html").write_bytes(b"deep")
    (root / "indexed" / "index.html").write_bytes(b"the index")
    with (root / "endless").open("wb") as file:
        file.truncate(1 << 30)
    # A named pipe stands for a file that takes its time.
    os.mkfifo(root / "slow")
    (tmp_path / "secret").write_bytes(b"not to be served")
    return root


PATHS = [
    "/",
    "/hello.txt",
    "/empty",
    "/a%20file%20%26%20more.html",
    "/sub/",
    "/sub",
    "/sub?query=1",
    "/sub/%C3%BCml%C3%A4ut.txt",
    "/sub/deeper/page.html?query#fragment",
    "/sub/../hello.txt",
    "/indexed/",
    "/hello.txt/",
    "/missing",
    "/../secret",
    "/%2e%2e/secret",
    "/..%2fsecret",
]


def test_every_path_is_answered_as_the_standard_library_does(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with serving(site) as served, http.server.HTTPServer(("127.0.0.1", 0), handler) as stock, looping(stock):
        for path in PATHS:
            for method in ("GET", "HEAD"):
                expected = get(stock.server_port, path, method)
                status, headers, body = served.get(path, method)
                assert (status, body) == (expected[0], expected[2]), (method, path)
                for name in ("content-type", "content-length", "last-modified", "location", "server"):
                    assert headers.get(name) == expected[1].get(name), (method, path, name)
        assert b"not to be served" not in served.get("/../secret")[2]
        for path in ("/%00", "/%00/", "/sub%00/hello.txt?query", "/%ED%A0%80"):
            for method in ("GET", "HEAD"):
                assert served.get(path, method)[0] == 404, f"{method} {path} can name no file"


def test_an_old_client_is_told_that_its_connection_is_kept_and_the_older_protocol_keeps_none(site: Path) -> None:
    with serving(site) as served, served.connect() as client:
        for _ in range(2):
            client.sendall(b"GET /hello.txt HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            reply = read_until(client, b"\r\n\r\nhello\n")
            assert b"\r\nConnection: keep-alive\r\n" in reply
        client.sendall(b"GET /hello.txt HTTP/1.0\r\n\r\n")
        reply = read_all(client)
        assert reply.endswith(b"hello\n") and b"keep-alive" not in reply
    with serving(site, "-p", "HTTP/1.0") as served, served.connect() as client:
        client.sendall(GET % b"hello.txt")
        reply = read_all(client)
        assert reply.startswith(b"HTTP/1.0 200 OK\r\n") and reply.endswith(b"hello\n")


@PROCESSES
def test_another_directory_figures_for_prometheus_and_no_log(site: Path, processes: tuple[str, ...]) -> None:
    def shown() -> list[str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT) as response:
            return re.findall(r'^ebbpool_task_submissions_total\{pool="(.*)"\} 1\.0$', response.read().decode(), re.M)

    options = ["-d", "sub", "--quiet", *processes]
    with reserved_port() as port, serving(site, *options, "--metrics", f"127.0.0.1:{port}") as served:
        assert served.get("/deeper/page.html")[::2] == (200, b"deep")
        eventually(lambda: len(shown()) == 1, "the one pool that has served is shown, and the endpoint's own is not")
        assert served.get("/hello.txt")[0] == 404
    assert served.log == ""


def test_a_line_per_request_as_the_standard_library_writes_it(site: Path) -> None:
    with serving(site) as served:
        served.get("/hello.txt")
        served.get("/missing")
        eventually(lambda: served.log.count("\n") == 3)
    date = r"127\.0\.0\.1 - - \[\d\d/\w{3}/\d{4} \d\d:\d\d:\d\d\] "
    texts = ['"GET /hello.txt HTTP/1.1" 200 -', "code 404, message File not found", '"GET /missing HTTP/1.1" 404 -']
    for line, text in zip(served.log.splitlines(), texts, strict=True):
        assert re.fullmatch(date + re.escape(text), line)


def test_the_first_line_is_the_one_of_the_standard_library(site: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "http.server", "0"]
    log = tmp_path / "log"
    for arguments in ([], ["-b", "127.0.0.1"]):
        with started([*command, *arguments], site, log) as other:
            expected = other.line.replace(str(other.port), "PORT")
        with started([sys.executable, "-m", "ebbpool", "serve", "0", *arguments], site, log) as served:
            assert served.line.replace(str(served.port), "PORT") == expected
            assert served.get("/hello.txt")[0] == 200
            assert served.stop()[0] == 0


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="the system has no sockets of both families")
@pytest.mark.parametrize("processes", [(), ("--processes", "1")])
def test_both_families_of_addresses(site: Path, processes: tuple[str, ...]) -> None:
    skip_without_ipv6()
    with serving(site, "-b", "::", *processes) as served:
        assert served.url == f"http://[::]:{served.port}/"
        for host in ("::1", "127.0.0.1"):
            with served.connect(host) as client:
                client.sendall(b"GET /hello.txt HTTP/1.0\r\n\r\n")
                assert read_all(client).endswith(b"\r\n\r\nhello\n")


# Limits, wrong use, and the end.


@contextmanager
def slow_request(served: Served, site: Path) -> Iterator[tuple[socket.socket, Callable[[], None]]]:
    """Have a worker read the pipe; yield the client's connection, and what to call for the file itself to come."""
    opened: list[int] = []

    def read_by_worker() -> bool:
        try:
            opened.append(os.open(site / "slow", os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return False
        return True

    with served.connect() as client:
        client.sendall(GET % b"slow")
        eventually(read_by_worker, seconds=PATIENCE)
        reply = read_until(client, b"\r\n\r\n")
        assert reply.startswith(b"HTTP/1.1 200 OK\r\n")
        with open(opened[0], "wb") as pipe:

            def finish() -> None:
                pipe.write(b"done")
                pipe.close()

            yield client, finish


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_it_once_what_runs_is_done(site: Path, number: int) -> None:
    with serving(site) as served, slow_request(served, site) as (client, finish), served.connect() as idle:
        idle.sendall(GET % b"hello.txt")
        assert idle.recv(65536).startswith(b"HTTP/1.1 200")
        served.process.send_signal(number)
        assert read_all(idle) in (b"", b"hello\n")
        eventually(served.refuses)
        assert not select.select([client], [], [], A_MOMENT)[0]
        assert served.process.poll() is None
        finish()
        assert read_all(client) == b"done"
        status, rest = served.end()
        expected = "\nKeyboard interrupt received, exiting.\n" if number == signal.SIGINT else ""
        assert (status, rest) == (0, expected)


def test_all_processes_finish_what_runs(site: Path) -> None:
    with serving(site, "--processes", "2") as served, slow_request(served, site) as (client, finish):
        served.process.send_signal(signal.SIGTERM)
        eventually(lambda: "event=child_exited" in served.log, "the idle child has gone", PATIENCE)
        assert not select.select([client], [], [], A_MOMENT)[0]
        finish()
        assert read_all(client) == b"done"
        assert served.end() == (0, "")


@pytest.mark.parametrize(
    ("number", "to_all"), [*((number, False) for number in SIGNALS), (signal.SIGINT, True)], ids=str
)
@PROCESSES
def test_a_signal_to_an_idle_server(site: Path, processes: tuple[str, ...], number: int, to_all: bool) -> None:
    with serving(site, *processes) as served:
        assert served.get("/hello.txt")[0] == 200
        # As a terminal does it, to all processes.
        (os.killpg if to_all else os.kill)(served.process.pid, number)
        status, rest = served.end()
        assert status == 0 and "KeyboardInterrupt" not in served.log, served.log
        assert rest in ("", "\nKeyboard interrupt received, exiting.\n")


@pytest.mark.parametrize("number", SIGNALS)
def test_a_second_signal_ends_it_at_once(site: Path, number: int) -> None:
    with serving(site) as served, slow_request(served, site):
        served.process.send_signal(signal.SIGTERM)
        eventually(served.refuses)
        assert served.stop(number)[0] == -number


def test_what_does_not_end_is_named_and_left(site: Path) -> None:
    with serving(site, "--shutdown-timeout", "0.1") as served, slow_request(served, site):
        status, _ = served.stop()
        assert status == 1
        assert "\npython -m ebbpool serve: error: after 0" in served.log
        # The worker has sent the head, but may not have come to the file yet.
        assert ("in do_GET" if STACKS else "(no stack") in served.log


@pytest.mark.parametrize(("workers", "answer"), [("1", (503, "1")), ("2", (200, None))])
def test_more_requests_than_may_run_or_wait_are_refused(site: Path, workers: str, answer: tuple[int, str]) -> None:
    with serving(site, "--max-workers", workers, "--max-queue", "0") as served, slow_request(served, site):
        status, headers, _ = served.get("/hello.txt")
        assert (status, headers.get("retry-after")) == answer


def test_a_head_that_does_not_come(site: Path) -> None:
    with serving(site, "--header-timeout", "0.1") as served:
        # What it finds when it looks is there in time, however long that takes.
        served.process.send_signal(signal.SIGSTOP)
        assert os.WIFSTOPPED(os.waitpid(served.process.pid, os.WUNTRACED)[1])
        try:
            client = served.connect()
            client.sendall(b"GET /hello.txt HTTP/1.1\r\nHost:")
        finally:
            served.process.send_signal(signal.SIGCONT)
        with client:
            assert read_all(client).startswith(b"HTTP/1.1 408 ")


def test_a_connection_that_is_not_used_and_a_client_that_takes_nothing(site: Path) -> None:
    with serving(site, "--idle-timeout", "0.1", "--request-timeout", "0.2") as served, served.connect() as client:
        client.sendall(GET % b"hello.txt")
        assert read_all(client).endswith(b"\r\n\r\nhello\n"), "it is closed once it was idle for so long"
        with served.connect() as lazy:
            lazy.sendall(GET % b"endless")
            eventually(lambda: "TimeoutError" in served.log)
            assert served.get("/hello.txt")[0] == 200


def test_a_client_that_leaves(site: Path) -> None:
    with serving(site) as served:
        with served.connect() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(GET % b"endless")
            assert client.recv(1) == b"H"
        eventually(lambda: "127.0.0.1 left: " in served.log)
        assert served.get("/hello.txt")[0] == 200


@PROCESSES
@pytest.mark.parametrize("metrics", [False, True])
def test_a_port_that_is_taken(site: Path, metrics: bool, processes: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        where = ["0", "--metrics", f"127.0.0.1:{port}"] if metrics else [str(port)]
        done = python("-m", "ebbpool", "serve", *where, "-b", "127.0.0.1", *processes, cwd=site)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"python -m ebbpool serve: error: cannot listen on '127.0.0.1:{port}': {os.strerror(errno.EADDRINUSE)}\n"
    )


@pytest.mark.parametrize("host", ["host.invalid", "a..b", "x" * 70])
def test_an_address_that_nobody_has(site: Path, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A name server that does not answer is not asked for longer than the run may take.
    monkeypatch.setenv("RES_OPTIONS", "timeout:1 attempts:1")
    done = python("-m", "ebbpool", "serve", "0", "-b", host, cwd=site)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("python -m ebbpool serve: error: ") and f"'{host}:0': " in done.stderr
    assert done.stderr.count("\n") == 1


@PROCESSES
@pytest.mark.parametrize("errors", ["2>&1", "2>&-", ""])
def test_that_nobody_reads_what_it_writes_changes_nothing(
    site: Path, tmp_path: Path, errors: str, processes: tuple[str, ...]
) -> None:
    shell = ["sh", "-c", f'unset PYTHONUNBUFFERED; exec "$@" {errors}', "sh", sys.executable, "-m", "ebbpool", "serve"]
    with started([*shell, "0", "-b", "127.0.0.1", *processes], site, tmp_path / "log") as served:
        assert served.process.stdout is not None
        served.process.stdout.close()
        assert served.get("/hello.txt")[::2] == (200, b"hello\n")
        with slow_request(served, site) as (client, finish):
            served.process.send_signal(signal.SIGINT)
            if not processes:
                eventually(served.refuses)
            finish()
            assert read_all(client) == b"done"
        assert served.process.wait(PATIENCE) == 0, served.log
        assert "Traceback" not in served.log and "Error" not in served.log, served.log
