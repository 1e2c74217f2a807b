"""What the tests of `benchmarks/` share."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.engine.model import Column, Question  # noqa: E402
from benchmarks.peers.table import Peer  # noqa: E402


def importable(peer: Peer) -> None:
    """Skip what needs a package that is not installed here; which core runs does not matter."""
    for module in peer.modules:
        pytest.importorskip(module)


def question_of(*columns: Column, **others: Any) -> Question:
    def unused(peer: Peer, params: object) -> dict[str, list[float]]:
        raise AssertionError("a cell was measured here")

    return Question(
        module="somewhere.made_up",
        title="Made up",
        method="by hand",
        columns=columns,
        variants=lambda peer, settings: [{"workers": 2}] if peer.open else "no pool",
        sizes=lambda quick: {"tasks": 1},
        measure=unused,
        **others,
    )


@contextmanager
def talking(talk: Callable[[socket.socket], object]) -> Iterator[int]:
    """Yield the port of a server that calls `talk` with each connection, in a thread of its own."""
    closing, threads = threading.Event(), list[threading.Thread]()

    def accept() -> None:
        while not closing.is_set():
            connection, _ = listener.accept()
            threads.append(threading.Thread(target=talk, args=(connection,)))
            threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield listener.getsockname()[1]
        finally:
            closing.set()
            socket.create_connection(listener.getsockname()).close()
            accepting.join()
            for thread in threads:
                thread.join()
