"""The server of both cases: endpoints that block, in FastAPI as plain ``def``, or handed to the loop's executor.

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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import uvicorn

import ebbpool
from benchmarks.load.serving import announce
from benchmarks.servers import main

CEILING = 256
SIDES = {
    "fastapi-stock": "stock",
    "fastapi-raised": f"{CEILING} tokens",
    "fastapi-installed": "ebbpool.anyio.install()",
    "asyncio-default": "ThreadPoolExecutor()",
    "asyncio-fixed": f"ThreadPoolExecutor({CEILING})",
    "asyncio-adaptive": "AdaptiveExecutor()",
}


def health() -> dict[str, Any]:
    return {"ok": True}


def wait(ms: int) -> dict[str, Any]:
    """Block as long as a call of an upstream would."""
    time.sleep(int(ms) / 1000)
    return {"waited": int(ms)}


def fastapi_app(side: str) -> Any:
    """Return the app as a user writes it; what differs between the sides is the running loop's process."""
    import anyio.to_thread
    from fastapi import FastAPI

    app = FastAPI()
    for function in (health, wait):
        app.get(f"/{function.__name__}", response_model=None)(function)
    if side == "raised":
        anyio.to_thread.current_default_thread_limiter().total_tokens = CEILING
    elif side == "installed":
        import ebbpool.anyio

        ebbpool.anyio.install()
    return app


def asyncio_app(side: str) -> Any:
    """Return an app each of whose endpoints hands all of its work to the loop's default executor."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    make: dict[str, Callable[[], ThreadPoolExecutor]] = {
        "default": ThreadPoolExecutor,
        "fixed": partial(ThreadPoolExecutor, CEILING),
        "adaptive": ebbpool.AdaptiveExecutor,
    }
    loop = asyncio.get_running_loop()
    loop.set_default_executor(make[side]())

    def route(function: Callable[..., dict[str, Any]]) -> Route:
        async def endpoint(request: Request) -> JSONResponse:
            return JSONResponse(await loop.run_in_executor(None, partial(function, **request.query_params)))

        return Route(f"/{function.__name__}", endpoint)

    return Starlette(routes=[route(health), route(wait)])


PARSER = "httptools" if importlib.util.find_spec("httptools") else "h11"


async def serve(name: str) -> None:
    """Serve one side on a free port of 127.0.0.1 until the parent lets go.

    ``GET /facts`` is answered by the loop itself: its threads beside this one, its processor time, and what runs.
    """
    framework, _, side = name.partition("-")
    app = fastapi_app(side) if framework == "fastapi" else asyncio_app(side)

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


def run(name: str) -> None:
    """Serve one side, on uvloop where it is installed."""
    uvloop = importlib.util.find_spec("uvloop") and importlib.import_module("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if uvloop else None) as runner:
        runner.run(serve(name))


if __name__ == "__main__":
    main({name: partial(run, name) for name in SIDES})
