"""The FastAPI server of `fastapi_burst` and `fastapi_rate`: a process of its own that dies with its parent."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._http import Clients
from benchmarks._model import ROOT
from benchmarks._peers import Peer
from benchmarks._pools import package

ENDPOINTS = {"trivial": 0.0, "5 ms": 0.005, "100 ms": 0.1}
BODY = b'{"answer":42}'
_BACKLOG = 2048
_START_SECONDS = 30.0


def target(endpoint: str) -> str:
    return "/" + endpoint.replace(" ", "-")


def build_app() -> Any:
    """Returns an app whose endpoints are plain functions, as FastAPI's own first example has them."""
    app = package("fastapi").FastAPI()

    def trivial() -> Any:
        return {"answer": 42}

    def sleeper(seconds: float) -> Any:
        def endpoint() -> Any:
            time.sleep(seconds)
            return {"answer": 42}

        return endpoint

    async def ready() -> Any:
        return {"answer": 42}

    app.get("/ready", response_model=None)(ready)
    for name, seconds in ENDPOINTS.items():
        app.get(target(name), response_model=None)(sleeper(seconds) if seconds else trivial)
    return app


def _die_with_parent() -> None:
    """The parent holds the other end of stdin: however it ends, that end is closed."""
    sys.stdin.buffer.read()
    os._exit(0)


def serve(argv: Sequence[str]) -> None:
    """Serves until stdin ends; prints the port first."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--own-loop", action="store_true")
    asked = parser.parse_args(argv)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    uvicorn = package("uvicorn")
    if asked.install:
        package("ebbpool.anyio").install()
    new_loop = package("ebbpool.aio").new_uvloop if asked.own_loop else package("uvloop").new_event_loop
    config = uvicorn.Config(build_app(), http="httptools", log_level="warning", access_log=False)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(_BACKLOG)
        print(listener.getsockname()[1], flush=True)
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(uvicorn.Server(config).serve(sockets=[listener]))


@dataclass(frozen=True, slots=True)
class Server:
    """A server process that answers."""

    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """What it has needed of a processor so far, in steps of a clock tick; 0 where the system does not tell."""
        stat = Path(f"/proc/{self.pid}/stat")
        if not stat.exists():
            return 0.0
        user, system = stat.read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@contextmanager
def server(peer: Peer) -> Iterator[Server]:
    """Yields a server in a fresh process that answers; it is gone afterwards, whatever happens.

    Raises:
        RuntimeError: it does not answer; its last words are on stderr.
    """
    assert peer.serves is not None
    command = [sys.executable, "-m", __name__, *peer.serves]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            line = child.stdout.readline()
            if not line:
                raise RuntimeError(f"the server ended with status {child.wait()}")
            port = int(line)
            with Clients(port, 1, "/ready", BODY) as clients:
                if clients.burst(_START_SECONDS).errors:
                    raise RuntimeError(f"the server did not answer within {_START_SECONDS:g} s")
            yield Server(port, child.pid)
        finally:
            child.kill()


if __name__ == "__main__":
    serve(sys.argv[1:])
