"""Children that listen on a Unix socket."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path

import pytest

if os.name != "posix":
    pytest.skip("Unix sockets and signals", allow_module_level=True)

from support.common import TIMEOUT
from support.prefork import site

from ebbpool.prefork import STOPPED


def test_http_over_a_unix_socket(tmp_path: Path) -> None:
    script = """
    from http.server import SimpleHTTPRequestHandler
    from ebbpool.socketserver import AdaptivePoolHTTPServer

    def serve(child):
        child.serve(AdaptivePoolHTTPServer.from_socket(child.listener, SimpleHTTPRequestHandler))
    """
    (tmp_path / "hello").write_bytes(b"hello")
    with site(tmp_path, "serve, processes=1, bind='unix:s'", script) as running:
        running.children(1)
        for _ in range(2):
            with socket.socket(socket.AF_UNIX) as client, contextlib.chdir(tmp_path):
                client.settimeout(TIMEOUT)
                client.connect("s")
                client.sendall(b"GET /hello HTTP/1.0\r\n\r\n")
                with client.makefile("rb") as reply:
                    assert reply.readline().startswith(b"HTTP/1.0 200 ") and reply.read().endswith(b"\r\n\r\nhello")
        running.await_text('"GET /hello HTTP/1.0" 200')
        assert running.stop() == STOPPED


def test_a_unix_socket_is_served_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with site(tmp_path, "bind='unix:s'") as running:
        children = running.children()
        assert path.is_socket()
        os.kill(children[0], signal.SIGKILL)
        running.child(0, 2)
        assert running.stop() == STOPPED
        assert not path.exists()
