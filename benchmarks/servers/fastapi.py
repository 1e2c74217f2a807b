"""The FastAPI server of the questions in `benchmarks.fastapi` and of the demo: a process that dies with its parent."""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib.util
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from benchmarks.engine.model import compute
from benchmarks.load.http import answers
from benchmarks.load.serving import announce
from benchmarks.peers import package
from benchmarks.servers import Kinds, main

ENDPOINTS = {"trivial": 0.0, "5 ms": 0.005, "100 ms": 0.1, "300 ms": 0.3}
ASYNC = "async def"
COMPUTING = "computing"
BODY = b'{"answer":42}'
_BACKLOG = 2048

ready = functools.partial(answers, target="/ready", expected=BODY)
"""Waits until a server on that port answers."""


def target(endpoint: str) -> str:
    return "/" + endpoint.replace(" ", "-")


def build_app(turns: int = 0, app: Any = None) -> Any:
    """Returns an app whose endpoints are plain functions, as FastAPI's own first example has them; one is `async def`.

    One more computes for so many `turns`, if there are any. The first request for /ready freezes what the app is made
    of, so that full collections do not go through it. With an `app` they are added to it.
    """
    app = app or package("fastapi").FastAPI()

    def trivial() -> Any:
        return {"answer": 42}

    def working(work: Callable[[Any], object], amount: float) -> Any:
        def endpoint() -> Any:
            work(amount)
            return {"answer": 42}

        return endpoint

    async def at_once() -> Any:
        return {"answer": 42}

    async def facts() -> Any:
        names = [thread.name for thread in threading.enumerate()]
        return {
            "threads": [name for name in names if name not in ("MainThread", "die-with-parent")],
            "cpu": time.process_time(),
            "loop": type(asyncio.get_running_loop()).__module__.partition(".")[0],
        }

    async def ready() -> Any:
        if not gc.get_freeze_count():
            gc.collect()
            gc.freeze()
        return {"answer": 42}

    for function in (facts, ready):
        app.get(f"/{function.__name__}", response_model=None)(function)
    app.get(target(ASYNC), response_model=None)(at_once)
    if turns:
        app.get(target(COMPUTING), response_model=None)(working(compute, turns))
    for name, seconds in ENDPOINTS.items():
        app.get(target(name), response_model=None)(working(time.sleep, seconds) if seconds else trivial)
    return app


def _stock(new_loop: Any = None, turns: str = "0", tokens: str = "", database: str = "") -> None:
    """Serve; `turns` of an endpoint that computes, and the tokens of anyio's limiter in place of forty.

    With the URL of a `database` the app in examples/ is part of it, without its lifespan, which would install ebbpool.
    """
    uvicorn, example = package("uvicorn"), None
    if database:
        example = package("examples.fastapi_sqlalchemy")
        example.connect(database, pool_size=5, max_overflow=10)
    app = build_app(int(turns), example and example.app)
    config = uvicorn.Config(app, log_level="critical", access_log=False, lifespan="off", timeout_keep_alive=300)
    if new_loop is None and importlib.util.find_spec("uvloop"):
        new_loop = package("uvloop").new_event_loop
    with socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG) as listener:
        announce(listener.getsockname()[1])
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(_run(uvicorn.Server(config), listener, tokens))


async def _run(server: Any, listener: socket.socket, tokens: str) -> None:
    if tokens:
        package("anyio.to_thread").current_default_thread_limiter().total_tokens = int(tokens)
    await server.serve(sockets=[listener])


def _installed(new_loop: Any = None, **options: str) -> None:
    package("ebbpool.anyio").install()
    _stock(new_loop, **options)


def _own_loop(**options: str) -> None:
    _installed(package("ebbpool.aio").new_loop_factory(package("uvloop").Loop), **options)


KINDS: Kinds = {"stock": _stock, "installed": _installed, "own-loop": _own_loop}

if __name__ == "__main__":
    main(KINDS)
