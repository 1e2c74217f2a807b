"""Large parts of calls on the cluster: each is sent once, and kept as long as calls have it, and a while longer."""

from __future__ import annotations

import asyncio
import logging
import uuid
from time import monotonic
from typing import Any, Final

from ebbpool._dask.packing import Part

KEPT: Final = 256 << 20
"""Bytes of parts that are kept there although no call under way has them."""
KEPT_FOR: Final = 60.0
"""Seconds for which they are kept."""
PATIENCE: Final = 1e9
"""Seconds for which sending waits for a worker: as long as it takes, as any call does."""
RETRIED: Final = 0.5
"""Seconds after which what could not be sent is sent again."""
ATTEMPTS: Final = 3
"""How often it is sent at most."""
_logger = logging.getLogger("concurrent.futures")


class There:
    """A part that is on the cluster, or on its way."""

    def __init__(self, size: int, sending: asyncio.Task[Any]) -> None:
        self.size = size
        self.sending = sending
        self.users = 0
        self.used = monotonic()

    def good(self) -> bool:
        """Return whether it may be used."""
        if not self.sending.done():
            return True
        if self.sending.cancelled() or self.sending.exception() is not None:
            return False
        # "lost" when the only worker that had it is, "cancelled" when the connection is.
        return bool(self.sending.result().status == "finished")


class Scattered:
    """The parts that a client has sent. All of this is for the thread of the client's loop."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._there: dict[str, There] = {}

    async def take(self, part: Part) -> There:
        """Send a part, unless it is there. Then `leave` is due."""
        there = self._there.get(part.digest)
        if there is None or not there.good():
            there = There(len(part.packed), asyncio.get_running_loop().create_task(self._send(part)))
            self._there[part.digest] = there
        there.users += 1
        try:
            # Shielded: others may wait for it, too.
            await asyncio.shield(there.sending)
        except BaseException:
            self.leave(there)
            raise
        return there

    def leave(self, there: There) -> None:
        """Note that a call that had a part has ended."""
        there.users -= 1
        there.used = monotonic()
        self.sweep()

    def sweep(self) -> None:
        """Let go what no call under way has: what is old, and the oldest of what is too much."""
        idle = [digest for digest, there in self._there.items() if there.users == 0 and there.sending.done()]
        idle.sort(key=lambda digest: self._there[digest].used)
        size = sum(self._there[digest].size for digest in idle)
        for digest in idle:
            there = self._there[digest]
            if there.good() and size <= KEPT and monotonic() - there.used < KEPT_FOR:
                break
            size -= there.size
            del self._there[digest]

    def clear(self) -> None:
        """Let go everything."""
        self._there.clear()

    async def _send(self, part: Part) -> Any:
        # By a name of its own each time: what was lost under a name is lost.
        key = f"ebbpool-part-{part.digest}-{uuid.uuid4().hex}"
        began = monotonic()
        attempts = 1
        while True:
            try:
                sent = await self._client.scatter({key: part.packed}, hash=False, timeout=PATIENCE)
                break
            except OSError:
                # The worker that it was sent to is gone; the next one is another.
                if attempts == ATTEMPTS:
                    raise
                attempts += 1
                await asyncio.sleep(RETRIED)
        _logger.debug(
            "%s was sent to the cluster, once for all calls that have it: %d bytes in %.2f s",
            part.name,
            len(part.packed),
            monotonic() - began,
        )
        return sent[key]
