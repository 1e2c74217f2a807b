"""The server's process: a Starlette app under uvicorn, with one pool as its loop's default executor."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import importlib.util
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import ebbpool

from . import upstream
from .control import Link
from .corpus import Library


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


class Server(uvicorn.Server):
    """A uvicorn server that tells when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to serve, then set `up`."""
        await super().startup(sockets)
        self.up.set()


async def obey(link: Link, server: Server, ready: dict[str, object]) -> None:
    """Tell the parent that the server is up, answer its questions; stop when the parent lets go."""
    await server.up.wait()
    await link.send(event="ready", **ready)
    while await link.receive() is not None:
        others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
        await link.send(threads=len(others), names=others, cpu=time.process_time())
    server.should_exit = True


async def main(options: argparse.Namespace) -> None:
    """Serve until the parent lets go."""
    link = await Link.to_parent(options.control)
    pool = make_pool(options.pool, options.ceiling)
    app = make_app(Library(options.index, options.root), options.store, pool)
    parser = "httptools" if importlib.util.find_spec("httptools") else "h11"
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    config = uvicorn.Config(
        app,
        http=parser,
        ws="none",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=300,
        backlog=1024,
    )
    server = Server(config)
    ready: dict[str, object] = {
        "port": listener.getsockname()[1],
        "loop": type(asyncio.get_running_loop()).__module__.partition(".")[0],
        "parser": parser,
        "max_workers": pool._max_workers,
        "ebbpool": ebbpool.__version__,
        "compiled": ebbpool.COMPILED,
    }
    obeying = asyncio.ensure_future(obey(link, server, ready))
    try:
        await server.serve(sockets=[listener])
    finally:
        obeying.cancel()
        link.close()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop, or None (asyncio's own) where uvloop is not installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    argument_parser = argparse.ArgumentParser(prog="python -m benchmarks.demo.app")
    argument_parser.add_argument("--control", type=int, required=True)
    argument_parser.add_argument("--pool", required=True)
    argument_parser.add_argument("--ceiling", type=int, required=True)
    argument_parser.add_argument("--index", type=Path, required=True)
    argument_parser.add_argument("--root", type=Path, required=True)
    argument_parser.add_argument("--store", type=int, required=True)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main(argument_parser.parse_args()))
