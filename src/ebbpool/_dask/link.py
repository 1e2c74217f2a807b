"""The way of a call to the cluster and of its outcome back, many at once, in the thread of the client's loop."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import BrokenExecutor, CancelledError
from contextlib import suppress
from contextvars import Context, copy_context
from itertools import count
from math import ceil
from typing import Any, Final

from distributed import Client, KilledWorker

from ebbpool._clock import monotonic
from ebbpool._dask.pace import TARGET, Pace
from ebbpool._dask.packing import LARGE, Packed, Parcel, Scattered, Shipment, out_of_context, packed_call
from ebbpool._dask.remote import HANDED_BACK, LOST, OK, ONCE, AtMostOnce, Outcome, error_of, loads, perform, variable
from ebbpool._interpreter import daemon_threads
from ebbpool._pool.running import called_name

LOOK: Final = 2.0
"""Seconds between two looks at how many threads the cluster has."""
ASKING: Final = 0.5
"""Seconds for which the scheduler is asked where calls run: the caller is past its deadline already."""
SMALL: Final = 16 << 10
"""Bytes of a result below which calls share a task of the cluster's."""
GOING: Final = 0.1
"""Seconds to wait, once the client is closed, for outcomes that its loop has passed on."""
NOT_AGAIN: Final = "is not run again, because it may have begun (rerun=True allows that)"


class Link:
    """A client as the executor uses it. What packs and sends is for any thread; the rest for that of the loop."""

    def __init__(self, client: Client, owned: bool, rerun: bool, variables: Iterable[str], window: float) -> None:
        self.client: Any = client
        self.closed = False
        self._window = window
        self.width = self._width_for(client.nthreads())
        self._owned = owned
        self._process = os.getpid()
        self._rerun = rerun
        self._variables = {name: variable(name) for name in variables}
        self._topic = f"{'ebbpool' if rerun else ONCE}-{uuid.uuid4().hex}"
        self._numbers = count()
        self._outbox: deque[Parcel] = deque()
        self._rung = False
        self._shipments: dict[str, Shipment] = {}
        self._following: set[asyncio.Task[None]] = set()
        self._scattered = Scattered(client)
        self._pace = Pace()
        self._executor: Callable[[], Any] = lambda: None
        self._fitting = threading.Lock()
        self._parting = threading.Lock()
        if not rerun:
            client.register_plugin(AtMostOnce())
        # The client keeps the callback, which must not keep this link alive.
        self._tell = functools.partial(_tell, weakref.ref(self))
        client.subscribe_topic(self._topic, self._tell)
        self._connection: Any = self.client.scheduler_comm
        self._joining: asyncio.Task[None] | None = None

    def _width_for(self, threads: dict[str, int]) -> int:
        return max(1, ceil(sum(threads.values()) * self._window))

    def watch(self, executor: Any) -> None:
        """Keep the executor's size at the window's share of the cluster's threads; part from the cluster at its end."""
        self._executor = weakref.ref(executor)
        asyncio.run_coroutine_threadsafe(self._watch(executor._crew), self.client.loop.asyncio_loop)

    async def _watch(self, crew: Any) -> None:
        while not self.closed and self.client.status != "closed":
            await asyncio.sleep(LOOK)
            self._scattered.sweep()
            # What could not be sent for want of a connection, or of places in the window.
            self._send_all()
            if self._executor() is None or crew.pool.closed:
                if crew.pool.headcount == 0 and not crew.pool.counts()["queued"]:
                    # Nobody can submit any more, and all that was accepted is done.
                    name = f"{crew.prefix}_parting"
                    threading.Thread(target=self.part, name=name, daemon=daemon_threads()).start()
                    return
                continue
            # Without a connection it is asked again; calls that are under way learn of its loss by themselves.
            with suppress(Exception):
                self.width = self._width_for(await self.client.nthreads())
                self._fit()

    def _fit(self) -> None:
        """Let the executor have as many threads as there may be calls on their way; in any thread."""
        executor = self._executor()
        if executor is None:
            return
        with self._fitting:
            most = self._pace.calls(self.width, monotonic())
            settings = executor._settings
            if (settings.max_workers, settings.min_workers) == (most, self.width):
                return
            spare = min(settings.min_spare_workers, most)
            executor.resize(max_workers=most, min_workers=self.width, min_spare_workers=spare)

    def values(self, context: Context | None = None) -> dict[str, Any]:
        """Return the values of the context variables that go along: those in a context, or those of the caller."""
        if not self._variables:
            return {}
        context = copy_context() if context is None else context
        return {name: context[found] for name, found in self._variables.items() if found in context}

    def check(self, fn: Callable[..., Any]) -> None:
        """Raise an error if `fn` is not callable, or if nothing can be sent any more."""
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {fn!r}")
        if os.getpid() != self._process:
            raise RuntimeError("cannot schedule new futures: the client's connection belongs to the parent process")
        if self.client.status in ("closed", "closing"):
            raise RuntimeError(f"cannot schedule new futures: {self.client!r} is closed")

    def pack(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
        """Return what has a call made with the caller's values of context variables, and returns its result."""
        self.check(fn)
        fn, args, kwargs, context = out_of_context(fn, args, kwargs)
        packed = packed_call(fn, args, kwargs, self.values(context))
        name = called_name(fn)
        now = monotonic()
        self._pace.expect(name, now)
        executor = self._executor()
        if executor is not None and executor._settings.max_workers > self._pace.calls(self.width, now):
            self._fit()
        return functools.partial(self._call, fn, name, packed)

    def _call(self, fn: Callable[..., Any], name: str, packed: Packed) -> Any:
        # `fn` is for those who ask what runs.
        return self.result_of(name, self.send(name, packed))

    def send(self, name: str, packed: Packed, alone: bool = False) -> Outcome:
        """Have a packed call made, in a task of the cluster's `alone` or with others; wait for its outcome."""
        if self.client.status == "closed":
            raise BrokenExecutor(f"{name} was not run: the client is closed")
        parcel = Parcel(name, packed, alone or bool(packed.parts))
        # In this order: the loop's thread lowers the flag before it looks into the outbox.
        self._outbox.append(parcel)
        if not self._rung:
            self._rung = True
            try:
                self.client.loop.add_callback(self._send_all)
            except RuntimeError as error:
                raise BrokenExecutor(f"{name} was not run: the client is closed") from error
        patience = LOOK
        while patience != GOING:
            # The loop of a client that is closed stops, and leaves what it was to do undone.
            patience = GOING if self.client.status == "closed" else LOOK
            with suppress(TimeoutError):
                return parcel.outcome.result(patience)
        raise BrokenExecutor(f"{name} was given up: the client is closed")

    def result_of(self, name: str, outcome: Outcome) -> Any:
        state, packed, _ = outcome
        del outcome
        try:
            found = loads(packed) if state == OK else error_of(packed)
        except Exception as reason:
            what = "result" if state == OK else "error"
            raise TypeError(f"the {what} of {name} cannot be unpickled here: {reason!r}") from reason
        if state == OK:
            return found
        try:
            raise found
        finally:
            del found

    def under_way(self) -> list[str]:
        """Return a line on each call that is with the cluster: its name, for how long, and on which worker."""
        places: dict[str, str] = {}
        elsewhere = "where is not known, because the scheduler does not say"
        with suppress(Exception):
            told = self.client.sync(self.client.scheduler.processing, workers=None, callback_timeout=ASKING)
            places = {key: worker for worker, keys in told.items() for key in keys}
            elsewhere = "on no known worker"
        now = monotonic()
        there = [
            (parcel, f"on {places[shipment.key]}" if shipment.key in places else elsewhere)
            for shipment in list(self._shipments.values())
            for parcel in list(shipment.parcels)
        ]
        here = [(parcel, "not on its way yet") for parcel in list(self._outbox)]
        return [f"{parcel.name}, sent {now - parcel.since:.1f} s ago, {place}" for parcel, place in there + here]

    async def _join_again(self, connection: Any) -> None:
        """After a new connection: see to it that the scheduler, which may be a new one, tells of losses."""
        try:
            if not self._rerun:
                await self.client.register_plugin(AtMostOnce())
            self.client.subscribe_topic(self._topic, self._tell)
        except Exception as error:
            if connection is self.client.scheduler_comm:
                while self._outbox:
                    _lose(self._outbox.popleft(), f"could not be sent to the cluster: {error}", error)
        else:
            self._connection = connection
        finally:
            self._joining = None
        self._send_all()

    def _send_all(self) -> None:
        self._rung = False
        if not self._outbox:
            return
        if self.client.status == "closed":
            while self._outbox:
                _lose(self._outbox.popleft(), "was not run: the client is closed")
            return
        connection = self.client.scheduler_comm
        if connection is None or self.client.status != "running":
            # Sent now, they would be put into the client's buffer, and go before `_join_again` has made sure of
            # anything. `_watch` tries again. If there is never a connection again, the client is closed in the end.
            return
        if connection is not self._connection:
            if self._joining is None:
                self._joining = asyncio.get_running_loop().create_task(self._join_again(connection))
            return
        while self._outbox and len(self._shipments) < self.width:
            shipment = Shipment(f"{self._topic}-{next(self._numbers)}", self._next_parcels())
            self._shipments[shipment.key] = shipment
            making = asyncio.get_running_loop().create_task(self._make(shipment))
            self._following.add(making)
            making.add_done_callback(self._following.discard)

    def _next_parcels(self) -> list[Parcel]:
        """Take the next call from the outbox, and with it what follows as long as all are known to be short."""
        most = ceil(len(self._outbox) / self.width)
        parcels = [self._outbox.popleft()]
        seconds = None if parcels[0].alone else self._pace.time(parcels[0].name)
        size = len(parcels[0].packed.data)
        while seconds is not None and self._outbox and len(parcels) < most:
            parcel = self._outbox[0]
            more = self._pace.time(parcel.name)
            size += len(parcel.packed.data)
            if parcel.alone or more is None or seconds + more > TARGET or size > LARGE:
                break
            seconds += more
            parcels.append(self._outbox.popleft())
        return parcels

    async def _make(self, shipment: Shipment) -> None:
        try:
            # Only of a parcel that is alone.
            for part in shipment.parcels[0].packed.parts:
                shipment.parts.append(await self._scattered.take(part))
            calls = [parcel.packed.data for parcel in shipment.parcels]
            parts = [there.sending.result() for there in shipment.parts]
            how = {"key": shipment.key, "pure": False, "retries": 0}
            future = self.client.submit(perform, self._topic, shipment.key, calls, *parts, **how)
            outcomes = await future.result()
        except KilledWorker as error:
            times = error.allowed_failures + 1
            tried = f"it was tried {times} {'time' if times == 1 else 'times'}"
            self._fail(shipment, f"was lost with the worker {error.last_worker.address}; {tried}", error)
        except (asyncio.CancelledError, CancelledError) as error:
            # `distributed` cancels futures when the client is closed, when the connection is lost, and when data is.
            if all(there.good() for there in shipment.parts) or self.client.status != "running":
                self._fail(shipment, f"was given up by the cluster's client: {error}", error)
            elif self._rerun:
                self._take_back(shipment, 0)
                self._close(shipment)
            else:
                lost = "was lost with the only worker that had a large argument of it; it"
                self._fail(shipment, f"{lost} {NOT_AGAIN}", error)
        except BaseException as error:
            self._fail(shipment, f"could not be made: {error!r}", error)
        else:
            if outcomes and outcomes[0][0] == LOST:
                self._fail(shipment, _loss(outcomes[0][1]))
                return
            try:
                self._end_first(shipment, outcomes)
                self._take_back(shipment, len(outcomes))
            finally:
                self._close(shipment)
            self._fit()

    def _end_first(self, shipment: Shipment, outcomes: list[Outcome]) -> None:
        now = monotonic()
        for parcel, outcome in zip(shipment.parcels, outcomes, strict=False):
            if parcel.outcome.done():
                continue
            if not parcel.alone:
                # Where results are large, sharing a task saves nothing.
                self._pace.note(parcel.name, outcome[2] if len(outcome[1]) < SMALL else HANDED_BACK, now)
            parcel.outcome.set_result(outcome)

    def _told(self, message: dict[str, Any]) -> None:
        shipment = self._shipments.get(message["key"])
        if shipment is None:
            return
        begun = message.get("begun")
        if begun is None:
            self._fail(shipment, _loss(message["worker"]))
            return
        self._end_first(shipment, message["outcomes"])
        if begun > len(message["outcomes"]):
            self._pace.note(shipment.parcels[begun - 1].name, HANDED_BACK, monotonic())
        self._take_back(shipment, begun)
        self._fit()
        self._send_all()

    def _take_back(self, shipment: Shipment, begun: int) -> None:
        """Put what has not begun at the head of the outbox."""
        back = shipment.parcels[begun:]
        del shipment.parcels[begun:]
        self._outbox.extendleft(reversed(back))

    def _fail(self, shipment: Shipment, told: str, cause: BaseException | None = None) -> None:
        for parcel in shipment.parcels:
            _lose(parcel, told, cause)
        self._close(shipment)

    def _close(self, shipment: Shipment) -> None:
        """Let a shipment go, and the next one take its place."""
        if self._shipments.pop(shipment.key, None) is None:
            return
        for there in shipment.parts:
            self._scattered.leave(there)
        self._send_all()

    def part(self) -> None:
        """Part from the cluster; not in the thread of the loop."""
        with self._parting:
            if self.closed or os.getpid() != self._process:
                return
            self.closed = True
            if self.client.status == "running":
                with suppress(Exception):
                    self.client.unsubscribe_topic(self._topic)
                    self.client.loop.add_callback(self._scattered.there.clear)
            if self._owned:
                self.client.close()


def _tell(link: weakref.ref[Link], event: tuple[float, dict[str, Any]]) -> None:
    found = link()
    if found is not None:
        found._told(event[1])


def _loss(worker: str) -> str:
    return f"was lost with the worker {worker}; it was tried once, and {NOT_AGAIN}"


def _lose(parcel: Parcel, told: str, cause: BaseException | None = None) -> None:
    # As in `_end_first`: in the loop's thread only, so that a parcel has one end.
    if not parcel.outcome.done():
        error = BrokenExecutor(f"{parcel.name} {told}")
        error.__cause__ = cause
        parcel.outcome.set_exception(error)
