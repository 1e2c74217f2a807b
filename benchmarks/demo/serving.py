"""What both apps' processes share: uvicorn on a free port, on a lead to the parent that asks and stops it."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import uvicorn

import ebbpool

from .control import Link


def arguments(prog: str) -> argparse.ArgumentParser:
    """Return a parser of what every server is told: where its parent and the slow store listen."""
    parser = argparse.ArgumentParser(prog=f"python -m {prog}")
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--store", type=int, required=True)
    return parser


class Server(uvicorn.Server):
    """A uvicorn server that tells when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to serve, then set `up`."""
        await super().startup(sockets)
        self.up.set()


async def obey(link: Link, server: Server, ready: dict[str, object], figures: Callable[[], dict[str, int]]) -> None:
    """Tell the parent that the server is up, answer its questions; stop when the parent lets go."""
    await server.up.wait()
    await link.send(event="ready", **ready)
    while await link.receive() is not None:
        others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
        await link.send(threads=len(others), names=others, cpu=time.process_time(), **figures())
    server.should_exit = True


async def serve(app: Any, link: Link, max_workers: int, figures: Callable[[], dict[str, int]] = dict) -> None:
    """Serve an ASGI app on a free port of 127.0.0.1 until the parent lets go.

    Args:
        app: The app.
        link: The lead to the parent, which is told the port and what runs.
        max_workers: The most threads that may work for the app at once; told to the parent.
        figures: Returns what else the parent is told at each of its questions.
    """
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
        "max_workers": max_workers,
        "ebbpool": ebbpool.__version__,
        "compiled": ebbpool.COMPILED,
    }
    obeying = asyncio.ensure_future(obey(link, server, ready, figures))
    try:
        await server.serve(sockets=[listener])
    finally:
        obeying.cancel()
        link.close()
