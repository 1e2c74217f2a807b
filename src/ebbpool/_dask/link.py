"""The way of a call to the cluster and of its outcome back, many at once, in the thread of the client's loop."""

from __future__ import annotations

import asyncio
import functools
import logging
import uuid
import weakref
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import BrokenExecutor, CancelledError
from contextlib import suppress
from contextvars import Context, copy_context
from itertools import count
from math import ceil
from time import monotonic
from typing import Any, Final

from distributed import Client, KilledWorker

from ebbpool._dask.once import ONCE, AtMostOnce
from ebbpool._dask.remote import LOST, OK, Outcome, brief, dumps, error_of, loads, perform, variable
from ebbpool._pool.running import called_name

LOOK: Final = 2.0
"""Seconds between two looks at how many threads the cluster has."""
ASKING: Final = 5.0
"""Seconds for which the scheduler is asked where calls run."""
_logger = logging.getLogger("concurrent.futures")


class Call:
    """A call that is ready to be sent."""

    __slots__ = ("_link", "fn", "packed")

    def __init__(self, link: Link, fn: Callable[..., Any], packed: bytes) -> None:
        self._link = link
        self.packed = packed
        self.fn = fn

    def make(self) -> Any:
        """Have the call made; return its result or raise its error."""
        return self._link.result_of(self._link.send(self.fn, self.packed))


class Parcel:
    """A call that has been handed to the cluster, and the thread here that waits for its outcome."""

    __slots__ = ("done", "error", "future", "key", "name", "outcome", "packed", "since")

    def __init__(self, key: str, name: str, packed: bytes) -> None:
        self.key = key
        self.name = name
        self.packed = packed
        self.since = monotonic()
        self.future: Any = None
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None
        self.done = allocate_lock()
        self.done.acquire()


class Link:
    """A client as the executor uses it. What sends may be called in any thread; the rest is in the loop's thread."""

    def __init__(self, client: Client, rerun: bool, variables: Iterable[str]) -> None:
        self.client: Any = client
        self.closed = False
        self._rerun = rerun
        self._variables = {name: variable(name) for name in variables}
        self._topic = f"{'ebbpool' if rerun else ONCE}-{uuid.uuid4().hex}"
        self._numbers = count()
        self._outbox: deque[Parcel] = deque()
        self._rung = False
        self._parcels: dict[str, Parcel] = {}
        self._following: set[asyncio.Task[None]] = set()
        if not rerun:
            client.register_plugin(AtMostOnce())
            client.subscribe_topic(self._topic, self._on_loss)
        self._connection: Any = self.client.scheduler_comm
        self._joining: asyncio.Task[None] | None = None

    def threads(self) -> int:
        """Return how many threads the workers have together."""
        return sum(self.client.nthreads().values())

    def watch(self, executor: Any, window: float) -> None:
        """Keep the executor's size at `window` times the cluster's threads, as long as the executor lives."""
        asyncio.run_coroutine_threadsafe(self._watch(weakref.ref(executor), window), self.client.loop.asyncio_loop)

    async def _watch(self, reference: weakref.ref[Any], window: float) -> None:
        while not self.closed and self.client.status != "closed":
            await asyncio.sleep(LOOK)
            try:
                threads = sum((await self.client.nthreads()).values())
            except Exception as error:
                # The connection may come back; calls that are under way learn of its loss by themselves.
                _logger.debug("the scheduler does not say how many threads there are: %r", error)
                continue
            executor = reference()
            if executor is None:
                return
            width = width_of(threads, window)
            if width != executor._max_workers:
                executor.resize(max_workers=width, min_workers=width)
            del executor

    def values(self, context: Context | None = None) -> dict[str, Any]:
        """Return the values of the context variables that go along: those in a context, or those of the caller."""
        if context is None:
            context = copy_context()
        return {name: context[found] for name, found in self._variables.items() if found in context}

    def pack(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        values: dict[str, Any] | None = None,
    ) -> Call:
        """Return a call that can be sent, with these values of context variables or those of the caller.

        A context cannot be sent. So of ``context.run(fn)``, which is what `asyncio.to_thread` submits, `fn` is sent,
        with the values in that context.

        Raises:
            TypeError: `fn` is not callable, or something cannot be pickled; the message says what.
            RuntimeError: The client is closed.
        """
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {fn!r}")
        if self.client.status in ("closed", "closing"):
            raise RuntimeError(f"cannot schedule new futures: {self.client!r} is closed")
        partial: Any = fn
        if isinstance(partial, functools.partial) and isinstance(getattr(partial.func, "__self__", None), Context):
            fn, args, kwargs = partial.func, (*partial.args, *args), {**partial.keywords, **kwargs}
        context: Any = getattr(fn, "__self__", None)
        if isinstance(context, Context) and getattr(fn, "__name__", "") == "run" and args:
            fn, *rest = args
            args = tuple(rest)
            values = self.values(context)
        if values is None:
            values = self.values() if self._variables else {}
        return Call(self, fn, _packed(fn, args, kwargs, values))

    def send(self, fn: Callable[..., Any], packed: bytes) -> Outcome:
        """Have a packed call made; wait for its outcome.

        Raises:
            BrokenExecutor: Its worker, the scheduler or the connection was lost; the message says which.
        """
        name = called_name(fn) or brief(fn)
        parcel = Parcel(f"{self._topic}-{next(self._numbers)}", name, packed)
        self._parcels[parcel.key] = parcel
        try:
            # In this order: the loop's thread lowers the flag before it looks into the outbox.
            self._outbox.append(parcel)
            if not self._rung:
                self._rung = True
                try:
                    self.client.loop.add_callback(self._send_all)
                except RuntimeError as error:
                    raise BrokenExecutor(f"{name} was not run: the client is closed") from error
            while not parcel.done.acquire(timeout=LOOK):
                # The loop of a client that is closed stops, and leaves what it was to do undone.
                if self.client.status == "closed" and not parcel.done.acquire(timeout=LOOK):
                    raise BrokenExecutor(f"{name} was given up: the client is closed")
        finally:
            self._parcels.pop(parcel.key, None)
        if parcel.error is not None:
            try:
                raise parcel.error
            finally:
                del parcel
        assert parcel.outcome is not None
        return parcel.outcome

    def result_of(self, outcome: Outcome) -> Any:
        """Return the result in an outcome, or raise the error."""
        state, packed, _ = outcome
        if state == OK:
            return loads(packed)
        error = error_of(packed)
        try:
            raise error
        finally:
            del error

    def under_way(self) -> list[str]:
        """Return a line on each call that is with the cluster: its name, for how long, and on which worker."""
        places: dict[str, str] = {}
        with suppress(Exception):
            # Where the scheduler does not answer, the lines say that it is not known.
            told = self.client.sync(self.client.scheduler.processing, workers=None, callback_timeout=ASKING)
            places = {key: worker for worker, keys in told.items() for key in keys}
        now = monotonic()
        return [
            f"{parcel.name}, sent {now - parcel.since:.1f} s ago, on {places.get(parcel.key, 'no known worker')}"
            for parcel in list(self._parcels.values())
        ]

    async def _join_again(self) -> None:
        """After a new connection: see to it that the scheduler, which may be a new one, tells of losses."""
        connection = self.client.scheduler_comm
        try:
            await self.client.register_plugin(AtMostOnce())
            self.client.subscribe_topic(self._topic, self._on_loss)
        except Exception as error:
            while self._outbox:
                parcel = self._outbox.popleft()
                self._end(parcel, None, BrokenExecutor(f"{parcel.name} could not be sent to the cluster: {error}"))
        else:
            self._connection = connection
        finally:
            self._joining = None
        self._send_all()

    def _send_all(self) -> None:
        self._rung = False
        connection = self.client.scheduler_comm
        if not self._rerun and connection is not None and connection is not self._connection:
            if self._joining is None:
                self._joining = asyncio.get_running_loop().create_task(self._join_again())
            return
        parcels: list[Parcel] = []
        while self._outbox:
            parcels.append(self._outbox.popleft())
        if not parcels:
            return
        try:
            futures = self.client.map(
                perform,
                [parcel.packed for parcel in parcels],
                key=[parcel.key for parcel in parcels],
                pure=False,
                retries=0,
            )
        except BaseException as error:
            for parcel in parcels:
                self._end(parcel, None, BrokenExecutor(f"{parcel.name} could not be sent to the cluster: {error}"))
            return
        for parcel, future in zip(parcels, futures, strict=True):
            parcel.packed = b""
            parcel.future = future
            task = asyncio.get_running_loop().create_task(self._follow(parcel, future))
            self._following.add(task)
            task.add_done_callback(self._following.discard)

    async def _follow(self, parcel: Parcel, future: Any) -> None:
        try:
            outcome = await future.result()
        except KilledWorker as error:
            lost = f"{parcel.name} was lost with the worker {error.last_worker.address}; it was tried "
            times = error.allowed_failures + 1
            self._end(parcel, None, BrokenExecutor(f"{lost}{times} {'time' if times == 1 else 'times'}"))
        except (asyncio.CancelledError, CancelledError) as error:
            # `distributed` cancels futures when the client is closed and when the connection is lost.
            self._end(parcel, None, BrokenExecutor(f"{parcel.name} was given up by the cluster's client: {error}"))
        except BaseException as error:
            self._end(parcel, None, error)
        else:
            if outcome[0] == LOST:
                self._end(parcel, None, _loss(parcel, outcome[1]))
            else:
                self._end(parcel, outcome, None)

    def _on_loss(self, event: tuple[float, dict[str, str]]) -> None:
        _, message = event
        parcel = self._parcels.get(message["key"])
        if parcel is not None:
            self._end(parcel, None, _loss(parcel, message["worker"]))

    def _end(self, parcel: Parcel, outcome: Outcome | None, error: BaseException | None) -> None:
        # In the loop's thread only, so that nothing comes between these lines.
        if parcel.outcome is None and parcel.error is None:
            parcel.outcome = outcome
            parcel.error = error
            parcel.future = None
            parcel.done.release()

    def close(self) -> None:
        """Listen no longer."""
        if not self.closed:
            self.closed = True
            if not self._rerun and self.client.status == "running":
                self.client.unsubscribe_topic(self._topic)


def width_of(threads: int, window: float) -> int:
    """Return how many calls may be with the cluster at a time."""
    return max(1, ceil(threads * window))


def _loss(parcel: Parcel, worker: str) -> BrokenExecutor:
    return BrokenExecutor(
        f"{parcel.name} was lost with the worker {worker}; it was tried once, and is not run again, because it may "
        "have begun (rerun=True allows that)"
    )


def _packed(*parts: Any) -> bytes:
    try:
        return dumps(parts)
    except Exception as error:
        fn, args, kwargs, values = parts
        named = [
            ("fn", fn),
            *((f"argument {index} of {brief(fn)}", value) for index, value in enumerate(args)),
            *((f"argument {name!r} of {brief(fn)}", value) for name, value in kwargs.items()),
            *((f"context variable {name!r}", value) for name, value in values.items()),
        ]
        for name, value in named:
            try:
                dumps(value)
            except Exception as reason:
                raise TypeError(f"{name} cannot be pickled: {brief(value)}: {reason}") from error
        raise TypeError(f"the call of {brief(fn)} cannot be pickled: {error}") from error
