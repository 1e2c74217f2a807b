"""The server of both cases: endpoints that block, in FastAPI as plain ``def``, or handed to the loop's executor.

`python -m benchmarks.demo.app SIDE --store PORT --root FOLDER` is one of

- ``fastapi-stock``: anyio lets forty ``def`` endpoints run at once;
- ``fastapi-raised``: anyio's own remedy, its forty tokens raised to ebbpool's ceiling;
- ``fastapi-installed``: one line, ``ebbpool.anyio.install()``;
- ``asyncio-default``: ``ThreadPoolExecutor()`` as the loop's executor;
- ``asyncio-fixed``: one of ebbpool's ceiling in its place;
- ``asyncio-adaptive``: ``AdaptiveExecutor()`` in its place.

There are no response models: with one, FastAPI hands the checking of every answer to a thread as well.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import ebbpool
from benchmarks.demo import upstream
from benchmarks.demo.serving import loop_factory, serve

CEILING = 256


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def endpoints(root: Path, store: int) -> list[Callable[..., dict[str, Any]]]:
    """Return the work: functions that block, each called with what a query has.

    Args:
        root: The folder that the paths asked for are relative to.
        store: The slow store's port.
    """

    def health() -> dict[str, Any]:
        return {"ok": True}

    def wait(ms: int) -> dict[str, Any]:
        time.sleep(int(ms) / 1000)
        return {"waited": int(ms)}

    def digest(path: str) -> dict[str, Any]:
        return {"path": path, "sha256": sha256_of(root / path)}

    def verify(n: str, path: str) -> dict[str, Any]:
        return digest(path) | {"stored": upstream.fetch(store, n, path)}

    return [health, wait, digest, verify]


def fastapi_app(work: list[Callable[..., dict[str, Any]]], side: str) -> Any:
    """Return the app as a user writes it; what differs between the sides is the running loop's process."""
    import anyio.to_thread
    from fastapi import FastAPI

    app = FastAPI()
    for function in work:
        app.get(f"/{function.__name__}", response_model=None)(function)
    if side == "raised":
        anyio.to_thread.current_default_thread_limiter().total_tokens = CEILING
    elif side == "installed":
        import ebbpool.anyio

        ebbpool.anyio.install()
    return app


def asyncio_app(work: list[Callable[..., dict[str, Any]]], side: str) -> Any:
    """Return an app each of whose endpoints hands all of its work to the loop's default executor."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    make: dict[str, Callable[[], ThreadPoolExecutor]] = {
        "adaptive": ebbpool.AdaptiveExecutor,
        "fixed": partial(ThreadPoolExecutor, CEILING),
    }
    loop = asyncio.get_running_loop()
    loop.set_default_executor(make.get(side, ThreadPoolExecutor)())

    def route(function: Callable[..., dict[str, Any]]) -> Route:
        async def endpoint(request: Request) -> JSONResponse:
            return JSONResponse(await loop.run_in_executor(None, partial(function, **request.query_params)))

        return Route(f"/{function.__name__}", endpoint)

    return Starlette(routes=[route(function) for function in work])


async def main(options: argparse.Namespace) -> None:
    """Serve until the parent lets go."""
    framework, _, side = options.side.partition("-")
    make = fastapi_app if framework == "fastapi" else asyncio_app
    await serve(make(endpoints(options.root, options.store), side))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo.app")
    parser.add_argument("side")
    parser.add_argument("--store", type=int, required=True)
    parser.add_argument("--root", type=Path, required=True)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main(parser.parse_args()))
