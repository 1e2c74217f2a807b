"""What the tests of `benchmarks/` share."""

from __future__ import annotations

import itertools
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.engine.model import Column, Question  # noqa: E402
from benchmarks.peers import Unavailable  # noqa: E402
from benchmarks.peers.peer import Peer  # noqa: E402


def importable(peer: Peer) -> None:
    """Skip what needs something that is not installed here; which core runs does not matter."""
    for module in peer.modules:
        pytest.importorskip(module)
    try:
        peer.needs()
    except Unavailable as reason:
        pytest.skip(str(reason))


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
