"""The asyncio case's server: a Starlette app under uvicorn, with one pool as its loop's default executor."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import ebbpool

from . import upstream
from .control import Link, loop_factory
from .corpus import Library
from .serving import arguments, serve


def make_pool(name: str, ceiling: int) -> ThreadPoolExecutor:
    """Return the pool under test; ``ceiling`` is the size of the fixed one."""
    if name == "default":
        return ThreadPoolExecutor()
    if name == "adaptive":
        return ebbpool.AdaptiveExecutor()
    if name == "fixed":
        return ThreadPoolExecutor(ceiling)
    raise ValueError(f"no pool is called {name!r}")


def make_app(library: Library, store: int, pool: ThreadPoolExecutor) -> Starlette:
    """Return the app. Each endpoint hands all of its work to the loop's default executor.

    Args:
        library: The indexed sources.
        store: The slow store's port.
        pool: What becomes the default executor, for the length of the app's life.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        asyncio.get_running_loop().set_default_executor(pool)
        yield

    async def offload(work: Callable[..., bytes], *arguments: object) -> Response:
        body = await asyncio.get_running_loop().run_in_executor(None, work, *arguments)
        return Response(body, media_type="application/json")

    async def search(request: Request) -> Response:
        return await offload(library.search, request.query_params["q"])

    async def digest(request: Request) -> Response:
        return await offload(library.digest, request.query_params["q"])

    async def verify(request: Request) -> Response:
        fetch = functools.partial(upstream.fetch, store, request.query_params["n"])
        return await offload(library.verify, request.query_params["path"], fetch)

    routes = [Route(f"/{endpoint.__name__}", endpoint) for endpoint in (search, digest, verify)]
    return Starlette(routes=routes, lifespan=lifespan)


async def main(options: argparse.Namespace) -> None:
    """Serve until the parent lets go."""
    link = await Link.to_parent(options.control)
    pool = make_pool(options.pool, options.ceiling)
    app = make_app(Library(options.index, options.root), options.store, pool)
    await serve(app, link, pool._max_workers)


if __name__ == "__main__":
    parser = arguments("benchmarks.demo.app")
    parser.add_argument("--pool", required=True)
    parser.add_argument("--ceiling", type=int, required=True)
    parser.add_argument("--index", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main(parser.parse_args()))
