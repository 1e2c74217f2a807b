"""Packs a call for the cluster, with `remote.dumps`; what is large is sent once, shared, and kept for a while."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Final

from ebbpool._clock import monotonic
from ebbpool._dask.remote import Outcome, Slot, brief, dumps

LARGE: Final = 1 << 20
"""Bytes of a pickle from which on a function or an argument goes by itself."""
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


class Part:
    """A large function or argument, pickled. Those of the same content have the same `digest`."""

    __slots__ = ("digest", "name", "packed")

    def __init__(self, name: str, packed: bytes) -> None:
        self.name = name
        self.packed = packed
        self.digest = hashlib.blake2b(packed, digest_size=20, usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class Packed:
    """A call, pickled, and the large parts for which slots stand in it."""

    data: bytes
    parts: tuple[Part, ...] = ()


def packed_call(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], values: dict[str, Any]
) -> Packed:
    """Return a call, pickled; raise a TypeError that says what cannot be."""
    try:
        data = dumps((fn, args, kwargs, values))
    except Exception as error:
        given = [(f"argument {place!r} of {brief(fn)}", value) for place, value in (*enumerate(args), *kwargs.items())]
        raise culprit([("fn", fn), *given], values, f"the call of {brief(fn)}", error) from error
    if len(data) <= LARGE:
        return Packed(data)
    parts: list[Part] = []
    slots: dict[int, Any] = {}

    def without(name: str, value: Any) -> Any:
        # An object that is passed twice must arrive as one object.
        if id(value) not in slots:
            packed = dumps(value)
            slots[id(value)] = value
            if len(packed) > LARGE:
                slots[id(value)] = Slot(len(parts))
                parts.append(Part(f"{name} of {brief(fn)}", packed))
        return slots[id(value)]

    rest = (
        without("the function", fn),
        tuple(without(f"argument {index}", value) for index, value in enumerate(args)),
        {name: without(f"argument {name!r}", value) for name, value in kwargs.items()},
        values,
    )
    return Packed(dumps(rest), tuple(parts)) if parts else Packed(data)


def out_of_context(
    fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any], Context | None]:
    """Return a call, and its context if it is one of ``context.run(fn)``, which `asyncio.to_thread` submits."""
    if isinstance(fn, functools.partial) and isinstance(getattr(fn.func, "__self__", None), Context):
        fn, args, kwargs = fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
    context = getattr(fn, "__self__", None)
    if isinstance(context, Context) and getattr(fn, "__name__", "") == "run" and args:
        return args[0], args[1:], kwargs, context
    return fn, args, kwargs, None


def culprit(named: list[tuple[str, Any]], values: dict[str, Any], whole: str, error: Exception) -> TypeError:
    """Return an error that says which of the named things, or of the context variables, cannot be pickled."""
    for name, value in [*named, *((f"context variable {name!r}", value) for name, value in values.items())]:
        try:
            dumps(value)
        except Exception as reason:
            return TypeError(f"{name} cannot be pickled: {brief(value)}: {reason}")
    return TypeError(f"{whole} cannot be pickled: {error}")


@dataclass(slots=True, eq=False)
class There:
    """A part that is on the cluster, or on its way."""

    size: int
    sending: asyncio.Task[Any]
    users: int = 0
    used: float = field(default_factory=monotonic)

    def good(self) -> bool:
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
        self.there: dict[str, There] = {}

    async def take(self, part: Part) -> There:
        """Send a part, unless it is there. Then `leave` is due."""
        there = self.there.get(part.digest)
        if there is None or not there.good():
            there = There(len(part.packed), asyncio.get_running_loop().create_task(self._send(part)))
            self.there[part.digest] = there
        there.users += 1
        try:
            # Shielded: others may wait for it, too.
            await asyncio.shield(there.sending)
        except BaseException:
            self.leave(there)
            raise
        return there

    def leave(self, there: There) -> None:
        there.users -= 1
        there.used = monotonic()
        self.sweep()

    def sweep(self) -> None:
        """Let go what no call under way has: what is old, and the oldest of what is too much."""
        idle = [digest for digest, there in self.there.items() if there.users == 0 and there.sending.done()]
        idle.sort(key=lambda digest: self.there[digest].used)
        size = sum(self.there[digest].size for digest in idle)
        for digest in idle:
            there = self.there[digest]
            if there.good() and size <= KEPT and monotonic() - there.used < KEPT_FOR:
                break
            size -= there.size
            del self.there[digest]

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
        told = "%s was sent to the cluster, once for all calls that have it: %d bytes in %.2f s"
        _logger.debug(told, part.name, len(part.packed), monotonic() - began)
        return sent[key]


@dataclass(slots=True, eq=False)
class Parcel:
    """A call that is on its way to the cluster, and the thread here that waits for its outcome."""

    name: str
    packed: Packed
    alone: bool
    since: float = field(default_factory=monotonic)
    outcome: Future[Outcome] = field(default_factory=Future)


@dataclass(slots=True, eq=False)
class Shipment:
    """One task of the cluster's, and the calls that it makes."""

    key: str
    parcels: list[Parcel]
    parts: list[There] = field(default_factory=list)
