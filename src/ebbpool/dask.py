"""An executor over a Dask cluster, in place of a local pool.

It needs ``distributed``: here, on the scheduler and on the workers.
When to use it, and when not: ``docs/cluster.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, ParamSpec, TypeVar, get_args

from ebbpool._checks import above_zero, finite_seconds, one_of
from ebbpool._core.accel import LaneCore, LoopCall
from ebbpool._errors import lacking
from ebbpool.executor import AdaptiveExecutor
from ebbpool.lane import Lane

try:
    from distributed import Client

    from ebbpool._dask.link import Link
    from ebbpool._dask.maps import ClusterRun
except ImportError as _error:
    raise lacking("dask", "distributed", _error) from _error

if TYPE_CHECKING:
    from ebbpool._core.scope import Scope

__all__ = ["ClusterExecutor", "ClusterLane"]

P = ParamSpec("P")
T = TypeVar("T")

WhenFull = Literal["block", "reject"]
_COMPARED: Final = ("python", "distributed", "ebbpool")
"""What has to be of the same version everywhere; of Python, the first two numbers."""


class ClusterLane(Lane):
    """A lane of a `ClusterExecutor`: at most `limit` of its calls are with the cluster at once."""

    _run_type = ClusterRun


class ClusterExecutor(AdaptiveExecutor):
    """A `ThreadPoolExecutor` whose calls are made by the workers of a Dask cluster.

    Each call that is with the cluster has a thread here that waits for its outcome; as many as `window` allows. The
    other calls wait here, in the executor's own queue, where they can be cancelled. So `running()` is true, and
    `cancel()` false, from the moment a thread takes a call to send it.

    Args:
        client_or_address: A `distributed.Client` that is not asynchronous, or the address of a scheduler. A client that
            is given stays open at the end; one that is made for an address is closed.
        window: How many calls may be with the cluster at a time, as a multiple of its workers' threads. The number of
            threads is looked up every two seconds.
        thread_name_prefix: As for `AdaptiveExecutor`; also the executor's name.
        max_queue: How many calls may wait here; None for no limit.
        when_full: What `submit` does when `max_queue` calls wait: "block" until there is room, or "reject" with
            `QueueFull`.
        rerun: Whether a call is made again when its worker is lost: as often as the scheduler's
            ``distributed.scheduler.allowed-failures`` says. If not, it is never made twice, and ends with
            `BrokenExecutor`, even if it had not begun: that cannot be known.
        timeout: Seconds that the scheduler at an address may take to answer.

    Raises:
        TypeError: An argument is of the wrong type; the message names it and its value.
        ValueError: An argument is out of range, or the client is closed or asynchronous.
        TimeoutError: No scheduler answered at the address.
        RuntimeError: Python, distributed or ebbpool on the scheduler or on a worker are not those here.
    """

    _lane_type = ClusterLane
    _run_type = ClusterRun

    def __init__(
        self,
        client_or_address: Client | str,
        *,
        window: float = 2.0,
        thread_name_prefix: str = "",
        max_queue: int | None = None,
        when_full: WhenFull = "block",
        rerun: bool = False,
        timeout: float = 10.0,
    ) -> None:
        window = above_zero("window", finite_seconds("window", window))
        timeout = above_zero("timeout", finite_seconds("timeout", timeout))
        one_of("when_full", when_full, get_args(WhenFull))
        owned = isinstance(client_or_address, str)
        client = _connected(client_or_address, timeout)
        try:
            _compare(client.get_versions(packages=["ebbpool"]))
            self._link = Link(client, owned, bool(rerun), window)
            width = self._link.width
            super().__init__(width, thread_name_prefix, min_workers=width, max_queue=max_queue, when_full=when_full)
        except BaseException:
            if owned:
                client.close()
            raise
        self._link.watch(self)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have `fn(*args, **kwargs)` called by a worker; return its `Future`.

        Raises:
            TypeError: `fn` is not callable, or it or an argument cannot be pickled; the message says which.
            RuntimeError: The executor has been shut down, or its client is closed.
            QueueFull: `max_queue` calls wait and `when_full` is "reject".
        """
        call: Callable[[], T] = self._link.pack(fn, args, kwargs)
        return super().submit(call)

    _own_submit = submit

    # The engine's other ways in: of lanes and `submit_first`, of event loops, of delayed and repeated calls.
    def hand_in(
        self,
        lane: LaneCore | None,
        first: bool,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        scope: Scope | None = None,
        shown: bool = False,
    ) -> Any:
        """Queue a call; see `ExecutorCore.hand_in`."""
        return super().hand_in(lane, first, self._link.pack(fn, args, kwargs), (), {}, scope, shown)

    def offload(
        self,
        mailbox: Any,
        ticket: Any,
        context: Context | None,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
        lane: LaneCore | None = None,
        scope: Scope | None = None,
    ) -> LoopCall:
        """Queue a call of an event loop; see `ExecutorCore.offload`."""
        call = self._link.pack(fn, args, kwargs or {})
        return super().offload(mailbox, ticket, context, call, (), None, lane, scope)

    def hold_back(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        """Return a future for a call that waits for its time; see `ExecutorCore.hold_back`."""
        return super().hold_back(self._link.pack(fn, args, kwargs or {}), (), None)

    def stream(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: the values of a generator on a worker cannot be handed over one by one.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("a generator cannot run on a cluster; use map with a buffersize")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False, timeout: float | None = None) -> None:
        """Take no more calls; those that wait here are still made, unless cancelled.

        Args:
            wait: Whether to wait until all calls have ended.
            cancel_futures: Whether to cancel calls that have not been handed to the cluster, those of maps among them.
            timeout: Seconds to wait at most; None for no limit.

        Raises:
            TypeError: `timeout` is not a number of seconds.
            ValueError: `timeout` is negative or NaN.
            TimeoutError: `timeout` ran out; the message says which calls are still with the cluster, for how long, and
                on which worker. The executor stays shut down.
        """
        try:
            super().shutdown(wait, cancel_futures=cancel_futures, timeout=timeout)
        except TimeoutError:
            lines = "\n".join(self._link.under_way())
            raise TimeoutError(f"after {timeout:g} s these calls are still with the cluster:\n{lines}") from None
        # Otherwise the link parts by itself once the last call has ended.
        if wait:
            self._link.part()

    def _wait_for_end(self) -> None:
        super()._wait_for_end()
        self._link.part()


def _connected(given: Client | str, timeout: float) -> Client:
    """Return a client that works, or raise an error that says what is wrong with the one given."""
    if isinstance(given, str):
        try:
            return Client(given, timeout=timeout, set_as_default=False)
        except OSError as error:
            told = f"no scheduler answered at client_or_address={given!r} within timeout={timeout:g} s"
            raise TimeoutError(told) from error
    if not isinstance(given, Client):
        raise TypeError(f"client_or_address must be a distributed.Client or an address, not {given!r}")
    if given.status != "running":
        raise ValueError(f"client_or_address must be a client that is connected, not {given!r}: {given.status}")
    if given.asynchronous:
        raise ValueError(f"client_or_address must be a client that is not asynchronous, not {given!r}")
    return given


def _compare(versions: dict[str, Any]) -> None:
    """Raise `RuntimeError` if versions, as `Client.get_versions` returns them, are not those of the client."""
    here = _versions(versions["client"])
    nodes = {f"the worker {address}": found for address, found in versions["workers"].items()}
    differing = [
        f"{node} has {name} {found} and not {here[name]}"
        for node, described in {"the scheduler": versions["scheduler"], **nodes}.items()
        for name, found in _versions(described).items()
        if found != here[name]
    ]
    if differing:
        raise RuntimeError("the cluster does not match this process: " + "; ".join(differing))


def _versions(described: dict[str, Any]) -> dict[str, str | None]:
    packages = {name: described["packages"].get(name) for name in _COMPARED}
    packages["python"] = ".".join(str(packages["python"]).split(".")[:2])
    return packages
