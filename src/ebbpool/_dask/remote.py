"""What runs on the cluster: calls and items of maps; how both sides pickle values; what tells of lost calls."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Final

import cloudpickle
from dask._task_spec import Task
from distributed import SchedulerPlugin

from ebbpool._clock import perf_counter
from ebbpool._errors import written

ONCE: Final = "ebbpool_once"
"""What the keys of calls that must not be made again begin with; then comes what is the executor's own."""
OK: Final = 0
RAISED: Final = 1

TEXT: Final = 20_000
"""How many characters of a traceback are sent."""

Outcome = tuple[int, Any, float]
"""Whether it was well, the pickled result or error, and the seconds it took."""


class RemoteTraceback(Exception):
    """The cause of an error that was raised on a worker: its text is the traceback there."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


@dataclass(frozen=True)
class Slot:
    """What stands in a call for a large part of it, which is sent by itself."""

    index: int


def dumps(value: Any) -> bytes:
    """Return the pickle of a value; functions that a worker could not import are written out whole."""
    try:
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:
        data = b""
    if data and b"__main__" not in data:
        return data
    packed: bytes = cloudpickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return packed


loads = pickle.loads


def perform(call: bytes, *parts: bytes) -> Outcome:
    """Make the call that `call` is the pickle of; return its outcome. It never raises."""
    began = perf_counter()
    try:
        fn, args, kwargs = loads(call)
        if parts:
            large = [loads(part) for part in parts]
            fn, *args = (_filled(value, large) for value in (fn, *args))
            kwargs = {name: _filled(value, large) for name, value in kwargs.items()}
        began = perf_counter()
        # In a copy: what the call sets stays out of the worker's thread, where distributed has variables of its own.
        result = copy_context().run(fn, *args, **kwargs)
        packed = _packed(result)
    except BaseException as error:
        # Also what is no Exception: it is the call's outcome, and must not end the worker's thread.
        return RAISED, _packed_error(error), perf_counter() - began
    return OK, packed, perf_counter() - began


def _filled(value: Any, large: list[Any]) -> Any:
    return large[value.index] if type(value) is Slot else value


class Lost(Exception):
    """A call that must not be made again was lost with the worker that this names."""


def raise_lost(worker: str) -> None:
    """Stand in for such a call."""
    raise Lost(worker)


def _packed(result: Any) -> bytes:
    if type(result) is Ready:
        return result.packed
    try:
        return dumps(result)
    except BaseException as error:
        raise TypeError(f"the result cannot be pickled: {brief(result)}: {brief(error)}") from error


def _packed_error(error: BaseException) -> bytes:
    """Return an error and its traceback, pickled. It never raises."""
    try:
        return _described(error)
    except BaseException:
        return dumps((TypeError("the error cannot be pickled, nor described"), ""))


def _described(error: BaseException) -> bytes:
    text = written(error)
    if len(text) > TEXT:
        text = f"{text[: TEXT // 2]}\n[{len(text) - TEXT} characters are left out]\n{text[-TEXT // 2 :]}"
    try:
        # All this is in the text. As objects it may hold what cannot be pickled, and tblib would write it.
        error.__traceback__ = error.__cause__ = error.__context__ = None
        packed = dumps((error, text))
        # An error whose arguments are not those of its class can be written, but not read.
        found = loads(packed)[0]
        if not isinstance(found, BaseException):
            raise TypeError(f"it comes back as {brief(found)}")
    except BaseException as reason:
        packed = dumps((TypeError(f"the error cannot be pickled: {brief(error)}: {brief(reason)}"), text))
    return packed


def brief(value: Any) -> str:
    """Return the representation of a value, of an acceptable length. It never raises."""
    try:
        text = repr(value)
    except BaseException as error:
        text = f"{object.__repr__(value)} ({type(error).__qualname__} from its __repr__)"
    return text if len(text) <= 200 else f"{text[:200]}..."


@dataclass(frozen=True)
class Failed:
    """The error of one item of a map, in the place of its result."""

    packed: bytes


@dataclass(frozen=True)
class Ready:
    """A pickle among what is pickled, or as the result of a call: it comes out as what it is the pickle of."""

    packed: bytes

    def __reduce__(self) -> tuple[Any, ...]:
        return loads, (self.packed,)


def apply(fn: Callable[..., Any], items: list[tuple[Any, ...]]) -> Ready:
    """Call `fn` with each item; return the results, with a `Failed` in the place of an error."""
    results: list[Any] = []
    for item in items:
        try:
            results.append(fn(*item))
        except BaseException as error:
            results.append(Failed(_packed_error(error)))
    try:
        return Ready(dumps(results))
    except BaseException:
        return Ready(dumps([_if_packable(result) for result in results]))


def _if_packable(result: Any) -> Any:
    try:
        return Ready(_packed(result))
    except TypeError as error:
        return Failed(_packed_error(error))


def error_of(packed: bytes) -> BaseException:
    """Return an error that was raised on a worker, with its traceback there as its cause."""
    error, text = loads(packed)
    error.__cause__ = RemoteTraceback(text)
    found: BaseException = error
    return found


class AtMostOnce(SchedulerPlugin):
    """Has calls of ours end, and not begin again, when the worker that had them, or their results, is lost.

    By itself the scheduler gives them to another worker. Whether they had begun cannot be known: what a worker
    sent last may be lost with it.
    """

    name = "ebbpool"
    idempotent = True

    def __init__(self) -> None:
        self._scheduler: Any = None
        self._places: dict[str, str] = {}

    async def start(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def transition(self, key: Any, start: Any, finish: Any, *args: Any, **kwargs: Any) -> None:
        """Note which worker has a call; when it is lost, put what tells so in the place of the call."""
        if not (isinstance(key, str) and key.startswith(ONCE)):
            return
        if finish == "processing":
            self._places[key] = self._scheduler.tasks[key].processing_on.address
        elif finish == "forgotten":
            self._places.pop(key, None)
        elif finish == "released" and start in ("processing", "memory"):
            task = self._scheduler.tasks[key]
            if task.who_wants:
                worker = self._places.get(key, "")
                if worker in self._scheduler.workers:
                    # This one is alive. So the lost one had stolen the call, which the scheduler does not report, or
                    # had a large argument of it.
                    worker = "that had taken it over, or had an argument of it"
                task.run_spec = Task(key, raise_lost, worker)
                # Told as well, because there may be no worker left that could run what stands in. Later, or what the
                # scheduler itself tells of this step would take it back.
                told = {"op": "task-erred", "key": key, "exception": dumps(Lost(worker))}
                self._scheduler.loop.add_callback(self._scheduler.report, told, task)
