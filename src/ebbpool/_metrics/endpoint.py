"""The HTTP endpoint from which a Prometheus server scrapes metrics, without the package ``prometheus_client``."""

from __future__ import annotations

import contextlib
import http.server
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ebbpool._metrics.table import CONTENT_TYPE, HISTOGRAMS, METRICS, Amounts, text
from ebbpool._prefork.bind import Bind, Listeners

PATIENCE: Final = 5.0
"""Seconds for which a client may be silent, or read nothing."""


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers GET and HEAD of /metrics, and of / too."""

    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]  # no other has this handler
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE

    def do_GET(self) -> None:
        """Send the metrics."""
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
        """Log nothing: a line for each scrape tells nobody anything."""


class Server(http.server.ThreadingHTTPServer):
    """The server of the endpoint, on a socket that listens already."""

    block_on_close = False

    def __init__(self, listener: socket.socket, render: Callable[[], str]) -> None:
        super().__init__(listener.getsockname(), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.render = render

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that has left."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


@contextlib.contextmanager
def endpoint(bind: Bind, read: Callable[[], Mapping[str, Amounts]], *, histograms: bool) -> Iterator[str]:
    """Answer scrapes, in threads of its own, while the block runs; yield the address.

    Args:
        bind: Where to listen; errors call it `metrics`.
        read: Returns the metrics of each pool, by its label; called in any thread.
        histograms: Whether histograms are among them.

    Raises:
        TypeError: `bind` is of the wrong type.
        ValueError: `bind` names no address.
        OSError: The address is taken, or cannot be bound.
    """
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
