"""The FastAPI server of `fastapi_burst`, `fastapi_rate` and `health_beside`: a process that dies with its parent."""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.load.http import answers
from benchmarks.load.serving import announce, die_with_parent
from benchmarks.load.work import compute
from benchmarks.peers import package

ENDPOINTS = {"trivial": 0.0, "5 ms": 0.005, "100 ms": 0.1}
ASYNC = "async def"
COMPUTING = "computing"
BODY = b'{"answer":42}'
_BACKLOG = 2048

ready = functools.partial(answers, target="/ready", expected=BODY)
"""Waits until a server on that port answers."""


def target(endpoint: str) -> str:
    return "/" + endpoint.replace(" ", "-")


def build_app(turns: int = 0) -> Any:
    """Returns an app whose endpoints are plain functions, as FastAPI's own first example has them; one is `async def`.

    One more computes for so many `turns`, if there are any. The first request for /ready freezes what the app is made
    of, so that full collections do not go through it.
    """
    app = package("fastapi").FastAPI()

    def trivial() -> Any:
        return {"answer": 42}

    def sleeper(seconds: float) -> Any:
        def endpoint() -> Any:
            time.sleep(seconds)
            return {"answer": 42}

        return endpoint

    def computing() -> Any:
        compute(turns)
        return {"answer": 42}

    async def at_once() -> Any:
        return {"answer": 42}

    async def ready() -> Any:
        if not gc.get_freeze_count():
            gc.collect()
            gc.freeze()
        return {"answer": 42}

    app.get("/ready", response_model=None)(ready)
    app.get(target(ASYNC), response_model=None)(at_once)
    if turns:
        app.get(target(COMPUTING), response_model=None)(computing)
    for name, seconds in ENDPOINTS.items():
        app.get(target(name), response_model=None)(sleeper(seconds) if seconds else trivial)
    return app


def serve(argv: Sequence[str]) -> None:
    """Serves until stdin ends; prints the port first."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--own-loop", action="store_true")
    parser.add_argument("--turns", type=int, default=0, help="with an endpoint that computes for so many turns")
    parser.add_argument("--tokens", type=int, help="of anyio's limiter, in place of forty")
    asked = parser.parse_args(argv)
    die_with_parent()
    uvicorn = package("uvicorn")
    if asked.install:
        package("ebbpool.anyio").install()
    new_loop = package("ebbpool.aio").new_uvloop if asked.own_loop else package("uvloop").new_event_loop
    app = build_app(asked.turns)
    config = uvicorn.Config(app, http="httptools", log_level="warning", access_log=False)
    with socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG) as listener:
        announce(listener.getsockname()[1])
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(_run(uvicorn.Server(config), listener, asked.tokens))


async def _run(server: Any, listener: socket.socket, tokens: int | None) -> None:
    if tokens:
        package("anyio.to_thread").current_default_thread_limiter().total_tokens = tokens
    await server.serve(sockets=[listener])


if __name__ == "__main__":
    serve(sys.argv[1:])
