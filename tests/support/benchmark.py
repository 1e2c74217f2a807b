"""What the tests of `benchmarks/` share."""

from __future__ import annotations

import itertools
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.engine.model import Column, Question  # noqa: E402
from benchmarks.engine.results import Run, read  # noqa: E402
from benchmarks.engine.runner import FORMAT, save  # noqa: E402
from benchmarks.peers.table import peer_named  # noqa: E402


def importable(name: str) -> None:
    """Skip what needs something that is not installed here; which core runs does not matter."""
    for module in peer_named(name).modules:
        pytest.importorskip(module)


def question_of(*columns: Column, **others: Any) -> Question:
    def unused(peer: object, params: object) -> dict[str, list[float]]:
        raise AssertionError("a cell was measured here")

    names = "loop simplequeue ebbpool ebbpool-pure stdlib multiprocessing"
    made: dict[str, Any] = {"name": "made_up", "title": "Made up", "variants": ({"workers": 2},)}
    return Question(columns=columns, peers=names, measure=unused, **made | others)


def run_of(path: Path, **peers: Sequence[float]) -> Run:
    """Return a run of `submit_collect` with 4 workers, µs by peer and round, that was written and read again."""
    samples = {peer: {"us": {str(at): [us] for at, us in enumerate(rounds, 1)}} for peer, rounds in peers.items()}
    cells = [{"peer": peer, "variant": {"workers": 4}, "samples": us, "without": []} for peer, us in samples.items()]
    about = {"format": FORMAT, "taken": "today", "seconds": 60, "commit": "abc", "versions": {}}
    python = {"implementation": "CPython", "python": "3.13.0 (main)", "gil": True}
    document = about | {
        "machine": python | {"processor": "", "processors": [0, 1]},
        "settings": {"quick": False, "pin": None, "workers": [4]},
        "questions": {"submit_collect": {"sizes": {}, "rounds": 3, "cells": cells}},
    }
    save(path, {path.stem: document})
    return read(path)[path.stem]


@contextmanager
def talking(talk: Callable[[socket.socket], object]) -> Iterator[int]:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            talk(self.request)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            serving.join()


@contextmanager
def answering(answer: Callable[[int], bytes | None]) -> Iterator[int]:
    """Yield the port of a server that sends `answer(number)` to request `number`, in two parts, or hangs up on None."""
    counter = itertools.count()

    def talk(connection: socket.socket) -> None:
        # A client that has seen enough leaves without its last response.
        with connection, suppress(ConnectionError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while connection.recv(65_536):
                text = answer(next(counter))
                if text is None:
                    return
                half = len(text) // 2
                connection.sendall(text[:half])
                connection.sendall(text[half:])

    with talking(talk) as port:
        yield port
