"""``python -m ebbpool serve``: what clients get from it."""

from __future__ import annotations

import email.utils
import functools
import hashlib
import http.client
import http.server
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.common import TIMEOUT, eventually
from support.serve import PATIENCE, Served, ask, read_all, run, serving, started
from support.server import reserved_port

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the platform has no signals to end a process cleanly")

BIG = os.urandom(1 << 20) * 5


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
    (root / "big.bin").write_bytes(BIG)
    (tmp_path / "secret").write_bytes(b"not to be served")
    return root


@contextmanager
def stock(root: Path) -> Iterator[int]:
    """Serve `root` with the standard library, in this process; yield the port."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(root))
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join(PATIENCE)


@pytest.fixture
def quiet_stock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "log_message", lambda *_: None)


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


def test_every_path_is_answered_as_the_standard_library_does(site: Path, quiet_stock: None) -> None:
    with serving(site) as served, stock(site) as port:
        for path in PATHS:
            for method in ("GET", "HEAD"):
                client = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
                expected = ask(client, path, method)
                client.close()
                status, headers, body = served.get(path, method)
                assert (status, body) == (expected[0], expected[2]), (method, path)
                for name in ("content-type", "content-length", "last-modified", "location", "server"):
                    assert headers.get(name) == expected[1].get(name), (method, path, name)
        assert b"not to be served" not in served.get("/../secret")[2]


@pytest.mark.parametrize("path", ["/%00", "/%00/", "/sub%00/hello.txt?query", "/%ED%A0%80"])
def test_a_path_that_can_name_no_file(site: Path, path: str) -> None:
    with serving(site) as served:
        for method in ("GET", "HEAD"):
            assert served.get(path, method)[0] == 404, method


def test_methods_that_are_not_there(site: Path) -> None:
    with serving(site) as served:
        for method in ("POST", "PUT", "DELETE"):
            status, headers, _ = served.get("/hello.txt", method)
            assert (status, headers["connection"]) == (501, "close"), method


def test_urllib_gets_files_and_errors(site: Path) -> None:
    with serving(site) as served:
        with urllib.request.urlopen(served.url + "sub/deeper/page.html", timeout=PATIENCE) as reply:
            assert (reply.status, reply.read()) == (200, b"deep")
        with urllib.request.urlopen(served.url + "sub", timeout=PATIENCE) as reply:
            assert reply.url == served.url + "sub/"
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(served.url + "missing", timeout=PATIENCE)
        with caught.value:
            assert caught.value.code == 404


def test_a_file_that_has_not_changed_is_not_sent(site: Path) -> None:
    changed = os.stat(site / "hello.txt").st_mtime
    with serving(site) as served:
        _, headers, _ = served.get("/hello.txt")
        status, again, body = served.get("/hello.txt", If_Modified_Since=headers["last-modified"])
        assert (status, body) == (304, b"") and "content-length" not in again
        before = email.utils.formatdate(changed - 1000, usegmt=True)
        assert served.get("/hello.txt", If_Modified_Since=before)[::2] == (200, b"hello\n")
        assert served.get("/hello.txt", If_Modified_Since="nonsense")[::2] == (200, b"hello\n")


def test_one_connection_for_many_requests(site: Path) -> None:
    with serving(site) as served:
        client = http.client.HTTPConnection("127.0.0.1", served.port, timeout=PATIENCE)
        client.connect()
        assert client.sock is not None
        own = client.sock.getsockname()
        for path in ["/", "/hello.txt", "/empty", "/sub", "/sub/", "/indexed/", "/big.bin", "/hello.txt"]:
            for method in ("GET", "HEAD"):
                status, headers, _ = ask(client, path, method)
                assert (status, headers.get("connection")) == (301 if path == "/sub" else 200, None)
                assert client.sock is not None and client.sock.getsockname() == own, path
        client.close()


def test_requests_that_come_at_once_are_answered_in_turn(site: Path) -> None:
    with serving(site) as served, served.connect() as client:
        client.sendall(
            b"GET /hello.txt HTTP/1.1\r\nHost: x\r\n\r\nHEAD /big.bin HTTP/1.1\r\nHost: x\r\n\r\n"
            b"GET /indexed/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        replies = read_all(client)
        assert replies.count(b"HTTP/1.1 200 OK") == 3
        assert replies.index(b"hello\n") < replies.index(b"Content-Length: %d" % len(BIG)) < replies.index(b"the index")


def test_an_old_client_is_told_that_its_connection_is_kept(site: Path) -> None:
    with serving(site) as served, served.connect() as client:
        for _ in range(2):
            client.sendall(b"GET /hello.txt HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            reply = b""
            while not reply.endswith(b"\r\n\r\nhello\n"):
                piece = client.recv(65536)
                assert piece, reply
                reply += piece
            assert b"\r\nConnection: keep-alive\r\n" in reply
        client.sendall(b"GET /hello.txt HTTP/1.0\r\n\r\n")
        reply = read_all(client)
        assert reply.endswith(b"hello\n") and b"keep-alive" not in reply


def test_the_older_protocol_closes_each_connection(site: Path) -> None:
    with serving(site, "-p", "HTTP/1.0") as served, served.connect() as client:
        client.sendall(b"GET /hello.txt HTTP/1.1\r\nHost: x\r\n\r\n")
        reply = read_all(client)
        assert reply.startswith(b"HTTP/1.0 200 OK\r\n") and reply.endswith(b"hello\n")


def test_many_at_once(site: Path) -> None:
    expected = hashlib.sha256(BIG).hexdigest()
    with serving(site) as served, ExitStack() as stack:
        clients = [stack.enter_context(served.connect()) for _ in range(40)]
        for number, client in enumerate(clients):
            path = b"/big.bin" if number % 4 == 0 else b"/hello.txt"
            client.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        for number, client in enumerate(clients):
            head, _, body = read_all(client).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK")
            if number % 4 == 0:
                assert hashlib.sha256(body).hexdigest() == expected
            else:
                assert body == b"hello\n"


@pytest.mark.parametrize("processes", [(), ("--processes", "2")])
def test_another_directory_than_the_current_one(site: Path, processes: tuple[str, ...]) -> None:
    with serving(site, "-d", "sub", *processes) as served:
        assert served.get("/deeper/page.html")[::2] == (200, b"deep")
        assert served.get("/hello.txt")[0] == 404


def test_a_line_per_request_as_the_standard_library_writes_it(site: Path) -> None:
    with serving(site) as served:
        served.get("/hello.txt")
        served.get("/missing")
        eventually(lambda: served.log.count("\n") == 3)
        lines = served.log.splitlines()
    date = r"127\.0\.0\.1 - - \[\d\d/\w{3}/\d{4} \d\d:\d\d:\d\d\] "
    assert re.fullmatch(date + re.escape('"GET /hello.txt HTTP/1.1" 200 -'), lines[0])
    assert re.fullmatch(date + re.escape("code 404, message File not found"), lines[1])
    assert re.fullmatch(date + re.escape('"GET /missing HTTP/1.1" 404 -'), lines[2])


@pytest.mark.parametrize("processes", [(), ("--processes", "1")])
def test_no_line_per_request_if_it_is_to_be_quiet(site: Path, processes: tuple[str, ...]) -> None:
    with serving(site, "--quiet", *processes) as served:
        assert served.get("/hello.txt")[0] == 200
        assert served.get("/missing")[0] == 404
    assert served.log == ""


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


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return socket.has_dualstack_ipv6()
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="the machine has no IPv6")
@pytest.mark.parametrize("processes", [(), ("--processes", "1")])
def test_both_families_of_addresses(site: Path, processes: tuple[str, ...]) -> None:
    with serving(site, "-b", "::", *processes) as served:
        assert served.url == f"http://[::]:{served.port}/"
        for host in ("::1", "127.0.0.1"):
            with served.connect(host) as client:
                client.sendall(b"GET /hello.txt HTTP/1.0\r\n\r\n")
                assert read_all(client).endswith(b"\r\n\r\nhello\n")


def test_httpx(site: Path) -> None:
    httpx = pytest.importorskip("httpx")
    with serving(site) as served, httpx.Client(base_url=served.url, timeout=PATIENCE, trust_env=False) as client:
        assert client.get("/hello.txt").text == "hello\n"
        assert client.get("/sub", follow_redirects=True).url.path == "/sub/"
        assert client.head("/big.bin").headers["content-length"] == str(len(BIG))
        assert client.get("/big.bin").content == BIG
        assert client.get("/missing").status_code == 404


def run_tool(served: Served, *command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr, served.log)
    return done.stdout


def test_curl_reuses_its_connection(site: Path) -> None:
    with serving(site) as served:
        urls = [served.url + path for path in ("hello.txt", "missing/../hello.txt", "indexed/")]
        shown = run_tool(
            served, "curl", "-sS", "--path-as-is", "--noproxy", "*", "-w", "%{http_code} %{num_connects}\n", *urls
        )
    assert shown == "hello\n200 1\nhello\n200 0\nthe index200 0\n"


@pytest.mark.parametrize("flags", [(), ("-k",)])
@pytest.mark.parametrize("processes", [(), ("--processes", "2")])
def test_ab(site: Path, flags: tuple[str, ...], processes: tuple[str, ...]) -> None:
    with serving(site, "--quiet", *processes) as served:
        shown = run_tool(
            served, "ab", "-q", "-n", "300", "-c", "20", *flags, f"http://127.0.0.1:{served.port}/hello.txt"
        )
    assert re.search(r"Complete requests: +300\n", shown)
    assert re.search(r"Failed requests: +0\n", shown)
    assert "Non-2xx" not in shown
    if flags:
        assert re.search(r"Keep-Alive requests: +300\n", shown)


@pytest.mark.parametrize("processes", [(), ("--processes", "2")])
def test_figures_for_prometheus(site: Path, processes: tuple[str, ...]) -> None:
    def shown() -> set[str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT) as response:
            return set(
                re.findall(r'^ebbpool_task_submissions_total\{pool="(.*)"\} 1\.0$', response.read().decode(), re.M)
            )

    with reserved_port() as port, serving(site, "--metrics", f"127.0.0.1:{port}", *processes) as served:
        assert served.get("/hello.txt")[0] == 200
        eventually(lambda: len(shown()) == 1, "the one pool that has served is shown, and the endpoint's own is not")


@pytest.mark.parametrize("processes", [(), ("--processes", "2")])
def test_an_address_for_figures_that_is_taken(site: Path, processes: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("0", "-b", "127.0.0.1", "--metrics", f"127.0.0.1:{port}", *processes, cwd=site)
    assert done.returncode == 1
    assert f"error: cannot listen on '127.0.0.1:{port}': " in done.stderr
    assert "Traceback" not in done.stderr


def test_an_address_for_figures_that_is_none(site: Path) -> None:
    done = run("0", "--metrics", "9464", cwd=site)
    assert done.returncode == 2
    assert """argument --metrics: it must be "host:port", "[host]:port" or "unix:path", not '9464'""" in done.stderr
