"""Runs the measurements that live inside an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from benchmarks.engine.model import Params, Samples
from benchmarks.peers import package
from benchmarks.peers.peer import Peer


def run_on(peer: Peer, main: Callable[[Peer, Params], Coroutine[Any, Any, Samples]], params: Params) -> Samples:
    """Runs `main(peer, params)` on the loop `params["loop"]` as the peer makes it.

    Raises:
        Unavailable: the loop's package is not installed.
    """
    name: str = params["loop"]
    found = package(name)
    if name == "trio":
        samples: Samples = found.run(main, peer, params)
        return samples
    with asyncio.Runner(loop_factory=lambda: peer.new_loop(name, params["workers"])) as runner:
        return runner.run(main(peer, params))
