"""Files over HTTP from several processes; any of them serves the sum of their metrics at /metrics.

Start it with::

    python -m pip install prometheus_client
    python prefork_metrics.py
"""

import logging
import os
import struct
import tempfile
from http.server import SimpleHTTPRequestHandler

if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:  # before the import
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = tempfile.mkdtemp()

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from ebbpool import prefork
from ebbpool.prometheus import PoolCollector
from ebbpool.socketserver import AdaptivePoolHTTPServer

registry = CollectorRegistry()
MultiProcessCollector(registry)


class Handler(SimpleHTTPRequestHandler):
    """Serves files, and metrics."""

    def do_GET(self) -> None:
        """Answer a request."""
        if self.path != "/metrics":
            return super().do_GET()
        try:
            body = generate_latest(registry)
        except struct.error:  # another process is just making its file
            return self.send_error(503)
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE_LATEST)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def serve(child: prefork.Child) -> None:
    """Serve in one of the processes."""
    collector = PoolCollector()
    child.serve(AdaptivePoolHTTPServer.from_socket(child.listener, Handler))
    collector.close()


def forget_the_dead(record: logging.LogRecord) -> bool:
    """Drop the gauges of a child that has exited, in the parent."""
    if vars(record).get("event") == "child_exited":
        mark_process_dead(vars(record)["pid"])
    return True


if __name__ == "__main__":
    events = logging.getLogger("ebbpool.prefork")
    events.setLevel(logging.INFO)
    events.addFilter(forget_the_dead)
    raise SystemExit(prefork.run(serve, bind=("127.0.0.1", 8000), processes=2))
