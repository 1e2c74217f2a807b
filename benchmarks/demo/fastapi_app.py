"""The FastAPI case's server: plain ``def`` endpoints that block, as most FastAPI apps have them.

`make_app` is what a user writes; it knows nothing of ebbpool. There are no response models: with one, FastAPI hands
the checking of every answer to a thread as well, which then waits for a token a second time.

The sides differ in `prepare` alone:

- ``stock``: nothing. anyio lets forty ``def`` endpoints run at once.
- ``raised``: anyio's own remedy, its forty tokens raised to ebbpool's ceiling.
- ``installed``: one line, ``ebbpool.anyio.install()``.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

import anyio.to_thread
from fastapi import FastAPI

from . import upstream
from .control import Link, loop_factory
from .corpus import sha256_of
from .serving import arguments, serve


def make_app(root: Path, store: int) -> FastAPI:
    """Return the app.

    Args:
        root: The folder that the paths asked for are relative to.
        store: The slow store's port.
    """
    app = FastAPI()

    @app.get("/health", response_model=None)
    def health() -> dict[str, bool]:
        return {"ok": True}

    @app.get("/wait", response_model=None)
    def wait(ms: int) -> dict[str, int]:
        time.sleep(ms / 1000)
        return {"waited": ms}

    @app.get("/digest", response_model=None)
    def digest(path: str) -> dict[str, str]:
        return {"path": path, "sha256": sha256_of(root / path)}

    @app.get("/verify", response_model=None)
    def verify(n: str, path: str) -> dict[str, str]:
        here = sha256_of(root / path)
        return {"path": path, "sha256": here, "stored": upstream.fetch(store, n, path)}

    return app


def prepare(side: str, ceiling: int) -> int:
    """Make the running loop's process one of the sides; return how many endpoints may run in it at once."""
    limiter = anyio.to_thread.current_default_thread_limiter()
    if side == "stock":
        return int(limiter.total_tokens)
    if side == "raised":
        limiter.total_tokens = ceiling
        return ceiling
    if side == "installed":
        import ebbpool.anyio

        most: int = ebbpool.anyio.install().executor._max_workers
        return most
    raise ValueError(f"no side is called {side!r}")


async def main(options: argparse.Namespace) -> None:
    """Serve until the parent lets go."""
    link = await Link.to_parent(options.control)
    max_workers = prepare(options.side, options.ceiling)
    await serve(make_app(options.root, options.store), link, max_workers)


if __name__ == "__main__":
    parser = arguments("benchmarks.demo.fastapi_app")
    parser.add_argument("--side", required=True)
    parser.add_argument("--ceiling", type=int, required=True)
    parser.add_argument("--root", type=Path, required=True)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main(parser.parse_args()))
