"""What serves an application by granian."""

from __future__ import annotations

import multiprocessing
import socket
import threading
from typing import Any

from benchmarks.load.serving import announce, wait_for
from benchmarks.peers import package

_START_SECONDS = 30.0


def serve(target: str, **options: Any) -> None:
    """Serve what `target` names; the port is told once something listens there.

    granian takes a port and no listener: a socket that does not listen keeps it from everybody else.
    """
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind(("127.0.0.1", 0))
        port = kept.getsockname()[1]

        def listens() -> bool:
            with socket.socket() as asking:
                return asking.connect_ex(("127.0.0.1", port)) == 0

        def tell() -> None:
            wait_for(listens, _START_SECONDS, "granian listens")
            announce(port)

        # A fork would take the lock of stdin along, which the thread that reads there holds.
        multiprocessing.set_start_method("spawn")
        server = package("granian").Granian(target, port=port, log_level="error", **options)
        server.on_startup(threading.Thread(target=tell, daemon=True).start)
        server.serve()
