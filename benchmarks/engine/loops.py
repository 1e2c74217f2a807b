"""Runs the measurements that live inside an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from benchmarks.engine.model import Params, Samples
from benchmarks.peers import package
from benchmarks.peers.peer import Peer


def on_loop(main: Callable[[Peer, Params], Coroutine[Any, Any, Samples]]) -> Callable[[Peer, Params], Samples]:
    """Return what runs `main(peer, params)` on the loop `params["loop"]` as the peer makes it."""

    def measure(peer: Peer, params: Params) -> Samples:
        name: str = params["loop"]
        found = package(name)
        if name == "trio":
            samples: Samples = found.run(main, peer, params)
            return samples
        with asyncio.Runner(loop_factory=lambda: peer.new_loop(name, params["workers"])) as runner:
            return runner.run(main(peer, params))

    return measure
