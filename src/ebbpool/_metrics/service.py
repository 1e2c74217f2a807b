"""Where Prometheus scrapes without its client, one process or all children of `prefork`, whose reports come here."""

from __future__ import annotations

import contextlib
import http.server
import json
import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ebbpool._metrics.source import Sums
from ebbpool._metrics.table import BY_NAME, CONTENT_TYPE, HISTOGRAMS, METRICS, Amounts, text
from ebbpool._prefork.bind import Bind, Listeners
from ebbpool._prefork.child import log

PATIENCE: Final = 5.0
"""Seconds for which a client may be silent, or read nothing."""
MEMORY: Final = 300.0
"""Seconds for which the parent keeps counters of a label that no pool has."""


def hear(sums: Sums, serial: int, report: bytes | None) -> None:
    """Take in a report of a child, or None if it has ended or was never started: its counters are kept."""
    try:
        told = {} if report is None else json.loads(report)
        # Another version may know more metrics.
        known = {
            label: {(metric, lane, value): float(n) for metric, lane, value, n in rows if metric in BY_NAME}
            for label, rows in told.items()
        }
    except Exception as error:
        # Nothing that a child says may end its parent.
        log(logging.WARNING, "metrics_unreadable", error=f"{type(error).__name__}: {error}")
    else:
        sums.update(serial, {label: (label, amounts) for label, amounts in known.items()})


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers GET and HEAD of /metrics, and of / too."""

    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]  # no other has this handler
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE

    def do_GET(self) -> None:
        if self.path.partition("?")[0] not in ("/", "/metrics"):
            self.send_error(404, explain="The metrics are at /metrics.")
            return
        body = self.server.render().encode()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the name is http.server's)
        """A line for each scrape tells nobody anything."""


class Server(http.server.ThreadingHTTPServer):
    block_on_close = False

    def __init__(self, listener: socket.socket, render: Callable[[], str]) -> None:
        super().__init__(listener.getsockname(), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.render = render

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that has left is no news.
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


@contextlib.contextmanager
def endpoint(bind: Bind, read: Callable[[], Mapping[str, Amounts]], *, histograms: bool) -> Iterator[str]:
    """Answer scrapes while the block runs, with what `read` returns in some other thread; yield the address."""
    metrics = (*METRICS, *HISTOGRAMS) if histograms else METRICS
    with contextlib.closing(Listeners(bind, 64, False, "metrics")) as listeners:
        server = Server(listeners.of(0), lambda: text(metrics, read()))
        thread = threading.Thread(target=server.serve_forever, name="ebbpool-metrics", daemon=True)
        thread.start()
        try:
            yield listeners.shown
        finally:
            server.shutdown()
            thread.join()
