"""What a type checker has to make of `ebbpool.prefork`. Checked, never run."""

from __future__ import annotations

import functools
import socket
import threading
from http.server import HTTPServer, SimpleHTTPRequestHandler
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import assert_type

from ebbpool import prefork


def serve(child: prefork.Child) -> None:
    assert_type(child.listener, socket.socket)
    assert_type(child.number, int)
    assert_type(child.stopping, threading.Event)
    child.on_stop(child.stopping.clear)
    child.ready()
    child.beat()
    child.serve(HTTPServer(("", 0), SimpleHTTPRequestHandler, bind_and_activate=False))
    child.serve(ThreadingTCPServer(("", 0), StreamRequestHandler))
    child.serve(child)  # type: ignore[arg-type]
    child.on_stop(len)  # type: ignore[arg-type]


def configured(folder: str, child: prefork.Child) -> int:
    return len(folder) + child.number


assert_type(prefork.run(serve, bind=("127.0.0.1", 8000)), int)
prefork.run(functools.partial(configured, "."), bind="unix:/run/it", processes=2, preload=True, graceful_timeout=1)
prefork.run(serve, bind=socket.create_server(("", 0)), heartbeat_timeout=float("inf"), reuse_port=False)
prefork.run(serve, bind=":8000", metrics=("127.0.0.1", 9464), metrics_sample=1 / 64)
prefork.run(serve, bind=":8000", preload=["json"])
prefork.run(serve, bind=":8000", preload=1)  # type: ignore[arg-type]
prefork.run(serve, bind=":8000", metrics=9464)  # type: ignore[arg-type]
prefork.run(configured, bind="localhost:8000")  # type: ignore[arg-type]
prefork.run(serve, bind=8000)  # type: ignore[arg-type]
prefork.run(serve)  # type: ignore[call-arg]
status: int = prefork.STOPPED or prefork.UNFINISHED or prefork.NEVER_STARTED
