"""The way of a call to the cluster and of its outcome back, in the thread of the client's loop."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError
from contextlib import suppress
from itertools import count
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from distributed import Client, KilledWorker

from ebbpool._called import called_name
from ebbpool._clock import monotonic
from ebbpool._core.accel import survey
from ebbpool._dask.packing import Packed, Parcel, out_of_context, packed_call
from ebbpool._dask.remote import OK, ONCE, AtMostOnce, Lost, Outcome, error_of, loads, perform
from ebbpool._interpreter import daemon_threads

if TYPE_CHECKING:
    from ebbpool._pool.crew import Crew
    from ebbpool.executor import AdaptiveExecutor

LOOK: Final = 2.0
"""Seconds between two looks at how many threads the cluster has."""
ASKING: Final = 0.5
"""Seconds for which the scheduler is asked where calls run: the caller is past its deadline already."""
GOING: Final = 0.1
"""Seconds to wait, once the client is closed, for outcomes that its loop has passed on."""


class Link:
    """A client as the executor uses it. What packs and sends is for any thread; the rest for that of the loop."""

    def __init__(self, client: Client, owned: bool, rerun: bool, window: float) -> None:
        self.client: Any = client
        self.closed = False
        self._window = window
        self.width = self._width_for(client.nthreads())
        self._owned = owned
        self._process = os.getpid()
        self._rerun = rerun
        self._prefix = f"{'ebbpool' if rerun else ONCE}-{uuid.uuid4().hex}"
        self._numbers = count()
        self._outbox: deque[Parcel] = deque()
        self._parcels: dict[str, Parcel] = {}
        self._following: set[asyncio.Task[None]] = set()
        self._executor: Callable[[], AdaptiveExecutor | None] = lambda: None
        self._parting = threading.Lock()
        if not rerun:
            client.register_plugin(AtMostOnce())
        self._connection: Any = self.client.scheduler_comm
        self._joining: asyncio.Task[None] | None = None

    def _width_for(self, threads: dict[str, int]) -> int:
        return max(1, ceil(sum(threads.values()) * self._window))

    def watch(self, executor: AdaptiveExecutor) -> None:
        """Keep the executor's size at the window's share of the cluster's threads; part from the cluster at its end."""
        self._executor = weakref.ref(executor)
        asyncio.run_coroutine_threadsafe(self._watch(executor._crew), self.client.loop.asyncio_loop)

    async def _watch(self, crew: Crew) -> None:
        while not self.closed and self.client.status != "closed":
            await asyncio.sleep(LOOK)
            # What could not be sent for want of a connection.
            self._send_all()
            if self._executor() is None or crew.pool.closed:
                if crew.pool.staff.headcount == 0 and not survey(crew.pool).counts["queued"]:
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
        executor = self._executor()
        if executor is not None and executor._settings.max_workers != self.width:
            spare = min(executor._settings.min_spare_workers, self.width)
            executor.resize(max_workers=self.width, min_workers=self.width, min_spare_workers=spare)

    def check(self, fn: Callable[..., Any]) -> None:
        """Raise an error if `fn` is not callable, or if nothing can be sent any more."""
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {fn!r}")
        if os.getpid() != self._process:
            raise RuntimeError("cannot schedule new futures: the client's connection belongs to the parent process")
        if self.client.status in ("closed", "closing"):
            raise RuntimeError(f"cannot schedule new futures: {self.client!r} is closed")

    def pack(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
        """Return what has a call made, and returns its result."""
        self.check(fn)
        fn, args, kwargs = out_of_context(fn, args, kwargs)
        return functools.partial(self._call, fn, called_name(fn), packed_call(fn, args, kwargs))

    def _call(self, fn: Callable[..., Any], name: str, packed: Packed) -> Any:
        # `fn` is for those who ask what runs.
        return self.result_of(name, self.send(name, packed))

    def send(self, name: str, packed: Packed) -> Outcome:
        """Have a packed call made; wait for its outcome."""
        parcel = Parcel(name, packed)
        self._outbox.append(parcel)
        try:
            self.client.loop.add_callback(self._send_all)
        except RuntimeError as error:
            raise BrokenExecutor(f"{name} was not run: the client is closed") from error
        timeout = LOOK
        while timeout != GOING:
            # The loop of a client that is closed stops, and leaves what it was to do undone.
            timeout = GOING if self.client.status == "closed" else LOOK
            with suppress(TimeoutError):
                return parcel.outcome.result(timeout)
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
            (parcel, f"on {places[key]}" if key in places else elsewhere) for key, parcel in list(self._parcels.items())
        ]
        here = [(parcel, "not on its way yet") for parcel in list(self._outbox)]
        return [f"{parcel.name}, sent {now - parcel.since:.1f} s ago, {place}" for parcel, place in there + here]

    async def _join_again(self, connection: Any) -> None:
        """After a new connection: see to it that the scheduler, which may be a new one, tells of losses."""
        try:
            if not self._rerun:
                await self.client.register_plugin(AtMostOnce())
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
        while self._outbox:
            parcel = self._outbox.popleft()
            key = f"{self._prefix}-{next(self._numbers)}"
            self._parcels[key] = parcel
            making = asyncio.get_running_loop().create_task(self._make(key, parcel))
            self._following.add(making)
            making.add_done_callback(self._following.discard)

    async def _make(self, key: str, parcel: Parcel) -> None:
        try:
            # Tasks of their own: the client sends none that another call still has, and the scheduler makes those again
            # that are lost with a worker.
            parts = [self.client.submit(bytes, part.packed, key=part.key) for part in parcel.packed.parts]
            future = self.client.submit(perform, parcel.packed.data, *parts, key=key, pure=False, retries=0)
            parcel.outcome.set_result(await future.result())
        except Lost as error:
            _lose(
                parcel,
                f"was lost with the worker {error}; it was tried once, and is not run again, "
                "because it may have begun (rerun=True allows that)",
            )
        except KilledWorker as error:
            times = error.allowed_failures + 1
            tried = f"it was tried {times} {'time' if times == 1 else 'times'}"
            _lose(parcel, f"was lost with the worker {error.last_worker.address}; {tried}", error)
        except (asyncio.CancelledError, CancelledError) as error:
            # The client is closed, or has lost the connection.
            _lose(parcel, f"was given up by the cluster's client: {error}", error)
        except BaseException as error:
            _lose(parcel, f"could not be made: {error!r}", error)
        finally:
            self._parcels.pop(key, None)

    def part(self) -> None:
        """Part from the cluster; not in the thread of the loop."""
        with self._parting:
            if self.closed or os.getpid() != self._process:
                return
            self.closed = True
            if self._owned:
                self.client.close()


def _lose(parcel: Parcel, told: str, cause: BaseException | None = None) -> None:
    error = BrokenExecutor(f"{parcel.name} {told}")
    error.__cause__ = cause
    parcel.outcome.set_exception(error)
