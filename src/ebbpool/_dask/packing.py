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
Sending = asyncio.Task[Any]


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


class Scattered:
    """The parts that a client has sent. All of this is for the thread of the client's loop."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._there: dict[str, tuple[Sending, int, float]] = {}
        """By their digests, the one that was used last at the end: what sends it, its size, and when it was used."""

    async def take(self, part: Part) -> Sending:
        """Send a part, unless it is there. It stays there for as long as what this returns."""
        sending, *_ = self._there.pop(part.digest, (None,))
        if sending is None or not good(sending):
            sending = asyncio.get_running_loop().create_task(self._send(part))
        self._there[part.digest] = sending, len(part.packed), monotonic()
        self.sweep()
        # Shielded: others may wait for it, too.
        await asyncio.shield(sending)
        return sending

    def sweep(self, kept_for: float = KEPT_FOR) -> None:
        """Let go what is old, and the oldest of what is too much; calls keep what they have."""
        size = sum(size for _, size, _ in self._there.values())
        for digest, (_, its_size, used) in list(self._there.items()):
            if size <= KEPT and monotonic() - used < kept_for:
                break
            size -= its_size
            del self._there[digest]

    async def _send(self, part: Part) -> Any:
        # By a name of its own each time: what was lost under a name is lost.
        key = f"ebbpool-part-{part.digest}-{uuid.uuid4().hex}"
        began = monotonic()
        left = ATTEMPTS
        while True:
            left -= 1
            try:
                sent = await self._client.scatter({key: part.packed}, hash=False, timeout=PATIENCE)
                break
            except OSError:
                # The worker that it was sent to is gone; the next one is another.
                if not left:
                    raise
                await asyncio.sleep(RETRIED)
        told = "%s was sent to the cluster, once for all calls that have it: %d bytes in %.2f s"
        _logger.debug(told, part.name, len(part.packed), monotonic() - began)
        return sent[key]


def good(sending: Sending) -> bool:
    """Return whether a part is there, or on its way."""
    if not sending.done():
        return True
    # "lost" when the only worker that had it is, "cancelled" when the connection is.
    return not sending.cancelled() and sending.exception() is None and sending.result().status == "finished"


@dataclass(slots=True, eq=False)
class Parcel:
    """A call that is on its way to the cluster, and the thread here that waits for its outcome."""

    name: str
    packed: Packed
    since: float = field(default_factory=monotonic)
    outcome: Future[Outcome] = field(default_factory=Future)
