"""The server: FastAPI endpoints that block, as plain ``def``.

`python -m benchmarks.demo.app SIDE` is one of `SIDES`; the docstring of the package says what each stands for.

There are no response models: with one, FastAPI hands the checking of every answer to a thread as well.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import socket
import threading
import time
from functools import partial
from typing import Any

import anyio.to_thread
import uvicorn
from fastapi import FastAPI

import ebbpool.anyio
from benchmarks.load.serving import announce
from benchmarks.servers import main

CEILING = 256
SIDES = {"stock": "stock", "raised": f"{CEILING} tokens", "installed": "ebbpool.anyio.install()"}


def health() -> dict[str, Any]:
    return {"ok": True}


def wait(ms: int) -> dict[str, Any]:
    """Block as long as a call of an upstream would."""
    time.sleep(ms / 1000)
    return {"waited": ms}


def build(side: str) -> Any:
    """Return the app as a user writes it; what differs between the sides is the running loop's process."""
    app = FastAPI()
    for function in (health, wait):
        app.get(f"/{function.__name__}", response_model=None)(function)
    if side == "raised":
        anyio.to_thread.current_default_thread_limiter().total_tokens = CEILING
    elif side == "installed":
        ebbpool.anyio.install()
    return app


PARSER = "httptools" if importlib.util.find_spec("httptools") else "h11"


async def serve(side: str) -> None:
    """Serve one side on a free port of 127.0.0.1 until the parent lets go.

    ``GET /facts`` is answered by the loop itself: its threads beside this one, its processor time, and what runs.
    """
    app = build(side)

    async def told(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != "/facts":
            await app(scope, receive, send)
            return
        names = [thread.name for thread in threading.enumerate()]
        loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
        core = "compiled" if ebbpool.COMPILED else "plain"
        facts = {
            "threads": [name for name in names if name not in ("MainThread", "die-with-parent")],
            "cpu": time.process_time(),
            "runs": f"{loop}, {PARSER}, ebbpool {ebbpool.__version__} ({core} core)",
        }
        body = json.dumps(facts).encode()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    config = uvicorn.Config(
        told, http=PARSER, ws="none", lifespan="off", log_level="warning", access_log=False, timeout_keep_alive=300
    )
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        announce(listener.getsockname()[1])
        await uvicorn.Server(config).serve(sockets=[listener])


def run(side: str) -> None:
    """Serve one side, on uvloop where it is installed."""
    uvloop = importlib.util.find_spec("uvloop") and importlib.import_module("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if uvloop else None) as runner:
        runner.run(serve(side))


if __name__ == "__main__":
    main({side: partial(run, side) for side in SIDES})
