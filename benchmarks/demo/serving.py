"""What the apps' processes share: uvicorn on a free port, with an endpoint that tells of the process."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import uvicorn

import ebbpool
from benchmarks.load.serving import announce, die_with_parent


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop, or None (asyncio's own) where uvloop is not installed."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop


PARSER = "httptools" if importlib.util.find_spec("httptools") else "h11"


async def serve(app: Any) -> None:
    """Serve an ASGI app on a free port of 127.0.0.1 until the parent lets go.

    ``GET /facts`` is answered by the loop itself: its threads beside this one, its processor time, and what runs.
    """

    async def told(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != "/facts":
            await app(scope, receive, send)
            return
        names = [thread.name for thread in threading.enumerate()]
        others = [name for name in names if name not in ("MainThread", "die-with-parent")]
        facts = {
            "threads": others,
            "cpu": time.process_time(),
            "loop": type(asyncio.get_running_loop()).__module__.partition(".")[0],
            "parser": PARSER,
            "core": "compiled" if ebbpool.COMPILED else "plain Python",
            "ebbpool": ebbpool.__version__,
        }
        body = json.dumps(facts).encode()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    die_with_parent()
    config = uvicorn.Config(
        told, http=PARSER, ws="none", lifespan="off", log_level="warning", access_log=False, timeout_keep_alive=300
    )
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        announce(listener.getsockname()[1])
        await uvicorn.Server(config).serve(sockets=[listener])
