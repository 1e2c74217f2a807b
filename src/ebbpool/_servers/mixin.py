"""The socketserver mix-in: it makes a server's pool, accepts connections in a loop, and hands them to workers."""

from __future__ import annotations

import functools
import socket
import socketserver
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor
from math import inf
from time import sleep
from typing import TYPE_CHECKING, Any, Self

from ebbpool._checks import time_limit, waiting_limit
from ebbpool._clock import monotonic
from ebbpool._interpreter import GIL_ENABLED
from ebbpool._servers.door import ACCEPTS, EXHAUSTED, LOGGER, NAP, SHARED_ACCEPTS, Door, turn_away
from ebbpool._servers.handlers import Handlers
from ebbpool._servers.loop_state import Loop
from ebbpool.executor import AdaptiveExecutor

if TYPE_CHECKING:
    # A mix-in has no base of its own; for type checkers it has that of the servers it is combined with.
    _Base = socketserver.TCPServer
else:
    _Base = object

_INHERITED = sys.platform != "linux"
"""Whether an accepted socket may have its listener's O_NONBLOCK."""


class AdaptivePoolMixIn(_Base):
    """A mix-in that runs the handlers of any `socketserver` server on an adaptive pool; put it first among the bases.

    The attributes may be set on a class, or on a server before it is activated.

    Attributes:
        min_workers: Threads that stay however long they are idle, once they have been needed.
        max_workers: How many threads there may be; 256 if None.
        min_spare_workers: Idle threads to keep ahead of demand.
        keep_alive: Seconds after which an idle thread leaves; None as for `AdaptiveExecutor`.
        max_queue: How many connections may wait for a thread; more are refused. None for no limit.
        thread_stack_size: Bytes of stack per thread, as for `AdaptiveExecutor`.
        daemon_threads: Whether the interpreter may exit while handlers run.
        executor: Runs the handlers in place of a pool of the server's own; the attributes above have no effect then.
            Servers may share it, and none of them shuts it down. It must refuse rather than wait: an
            `AdaptiveExecutor` with `max_queue` needs ``when_full="reject"``. That is checked when the server is
            activated; if `resize` sets a `max_queue` later, the server's loop waits for room in the queue.
        handshake_timeout: Seconds for which a worker waits for the handshake with a client of a TLS listener.
        shutdown_timeout: Seconds for which `server_close` waits for handlers; None for ever.
        block_on_close: Whether `server_close` waits for handlers at all.
    """

    min_workers: int = 0
    max_workers: int | None = None
    min_spare_workers: int = 0
    keep_alive: float | None = None
    max_queue: int | None = None
    thread_stack_size: int | None = None
    daemon_threads: bool = False
    executor: Executor | None = None
    handshake_timeout: float | None = 10.0
    shutdown_timeout: float | None = 30.0
    block_on_close: bool = True

    _adopted = False
    _deferred = False

    @classmethod
    def from_socket(cls, listener: socket.socket, RequestHandlerClass: Any, **kwargs: Any) -> Self:
        """Make a server on a socket that is bound already and, for a stream server, listens.

        Use it for a socket that several processes share: the socket is made non-blocking, and it is no error if another
        process was quicker to accept. The server closes it.

        Args:
            listener: The socket.
            RequestHandlerClass: As for any server.
            kwargs: Further arguments for the class.

        Raises:
            TypeError: An attribute of the class is of the wrong type; the message names it.
            ValueError: An attribute of the class is out of range; the message names it.
        """
        server = cls(listener.getsockname(), RequestHandlerClass, bind_and_activate=False, **kwargs)
        server.socket.close()
        server.socket = listener
        server.address_family = listener.family
        server.server_address = listener.getsockname()
        server._adopted = True
        listener.setblocking(False)
        server.server_activate()
        return server

    @functools.cached_property
    def pool_handlers(self) -> Handlers:
        """The handlers that are queued or run, and the executor they run on."""
        waiting_limit("shutdown_timeout", self.shutdown_timeout)
        waiting_limit("handshake_timeout", self.handshake_timeout)
        executor = self.executor
        if executor is None:
            executor = AdaptiveExecutor(
                self.max_workers,
                type(self).__name__,
                min_workers=self.min_workers,
                min_spare_workers=self.min_spare_workers,
                keep_alive=self.keep_alive,
                max_queue=self.max_queue,
                when_full="reject",
                daemon=self.daemon_threads,
                thread_stack_size=self.thread_stack_size,
            )
        elif not isinstance(executor, Executor):
            raise TypeError(f"executor must be a concurrent.futures.Executor or None, not {executor!r}")
        return Handlers(executor, self.executor is None, weakref.WeakMethod(self._lost))

    @property
    def _loop(self) -> Loop:
        # Made by the first call, in any thread: a mix-in cannot rely on its `__init__` being called.
        found: Loop = vars(self).get("_the_loop") or vars(self).setdefault("_the_loop", Loop())
        return found

    def server_bind(self) -> None:
        """Bind the socket.

        Raises:
            OSError: The address cannot be bound; the message names it.
        """
        address = self.server_address
        try:
            super().server_bind()
        except OSError as error:
            if error.strerror:
                error.strerror = f"{error.strerror}: {address!r}"
            raise

    def server_activate(self) -> None:
        """Check the attributes, make the pool, and listen.

        Raises:
            TypeError: An attribute is of the wrong type; the message names it.
            ValueError: An attribute is out of range; the message names it.
        """
        self.pool_handlers  # noqa: B018 (made here, so that a bad attribute is found now)
        if not self._adopted:
            super().server_activate()
        self._loop.expected = True

    def serve_forever(self, poll_interval: float | None = 0.5) -> None:
        """Serve until `shutdown`; other threads may call that, and it ends the loop at once.

        Interpreter exit waits for a loop in a non-daemon thread, whose pool works on meanwhile, unless some thread
        waits for the main thread to end. CPython 3.12 starts no worker then.

        Args:
            poll_interval: Seconds between calls of `service_actions`, at most.
        """
        listener = self.socket
        timeout = listener.gettimeout()
        # So that `accept` cannot block the loop if a client has closed its connection before it. An adopted listener
        # stays non-blocking, as the other processes need it.
        changes = self.socket_type == socket.SOCK_STREAM and not self._adopted
        loop = self._loop
        # Not a context manager: an interrupt just after its first half would skip its second one.
        try:
            bell = loop.begin()
            door = self._entrance()
            if getattr(listener, "do_handshake_on_connect", False):
                # Of a TLS listener: a handshake is left to the worker.
                listener.do_handshake_on_connect = False  # type: ignore[attr-defined]
                self._deferred = True
            if changes:
                listener.setblocking(False)
            try:
                door.open(listener.fileno(), bell)
                while True:
                    knock = door.turn(inf if poll_interval is None else poll_interval)
                    over = loop.stopping or (listener.fileno() < 0 and not door.keeps)
                    if knock and (door.keeps or not over):
                        self._accept_ready(door)
                    if over:
                        break
                    self.service_actions()
            finally:
                door.shut()
                if changes and listener.fileno() >= 0:
                    listener.settimeout(timeout)
        finally:
            loop.end()

    def _entrance(self) -> Door:
        """Return where the loop waits for connections."""
        return Door(self)

    def shutdown(self) -> None:
        """End `serve_forever` and wait for its end, unless its own thread calls this; handlers run on."""
        self._loop.stop()

    def _accept_ready(self, door: Door) -> None:
        """Accept and hand over the connections that wait."""
        # All are accepted before any is handed over: otherwise a worker would compete for the GIL after each. But not
        # with a foreign `get_request`, which may take long.
        one_by_one = getattr(self.get_request, "__func__", None) is not socketserver.TCPServer.get_request
        most = 1 if self.socket_type != socket.SOCK_STREAM else SHARED_ACCEPTS if self._adopted else ACCEPTS
        accepted: list[tuple[Any, Any]] = []
        count = 0
        for _ in range(most):
            try:
                door.check_room()
                accepted.append(self.get_request())
                count += 1
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    break
                if not door.shed():
                    door.rest(error)
                    break
            if one_by_one:
                self._hand_over(accepted, door)
                if self._loop.stopping and not door.keeps:
                    break
        self._hand_over(accepted, door)
        if GIL_ENABLED and not door.keeps and door.naps_after(count):
            # Workers that have the GIL for this long switch less often, and the next look finds more connections.
            sleep(NAP)

    def _hand_over(self, accepted: list[tuple[Any, Any]], door: Door) -> None:
        for request, client_address in accepted:
            if _INHERITED and isinstance(request, socket.socket) and request.gettimeout() is None:
                request.setblocking(True)
            self._guarded(door.admit, request, client_address)
        accepted.clear()

    def _guarded(self, hook: Callable[[Any, Any], object], request: Any, client_address: Any) -> None:
        """Call a hook in the loop's thread; an exception costs its connection alone."""
        try:
            hook(request, client_address)
        except Exception:
            self._failed(request, client_address)
            self.shutdown_request(request)
        except BaseException:
            self.shutdown_request(request)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Have a worker handle the request, or refuse it."""
        if not self.pool_handlers.submit(client_address, self.process_request_thread, request, client_address):
            self.refuse_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle one request, in a worker; whatever is raised goes to `handle_error`."""
        self._handle(request, client_address)
        self._shut_down(request, client_address)

    def _shut_down(self, request: Any, client_address: Any) -> None:
        try:
            self.shutdown_request(request)
        except Exception:
            LOGGER.exception("the connection of %s could not be shut down", client_address)

    def _handle(self, request: Any, client_address: Any) -> bool:
        """Have the handler handle a request, in a worker; return whether nothing was raised."""
        try:
            if not self._deferred or self._shook_hands(request):
                self.finish_request(request, client_address)
            return True
        except BaseException:
            self._failed(request, client_address)
            return False

    def _shook_hands(self, request: Any) -> bool:
        timeout = request.gettimeout()
        try:
            # The timeout of a handshake limits the whole handshake, not each read.
            request.settimeout(waiting_limit("handshake_timeout", self.handshake_timeout))
            request.do_handshake()
            request.settimeout(timeout)
        except OSError as error:
            LOGGER.debug("TLS handshake failed: %s", error)
            return False
        return True

    def _failed(self, request: Any, client_address: Any) -> None:
        try:
            self.handle_error(request, client_address)
        except BaseException:
            LOGGER.exception("handle_error failed for the request from %s", client_address)

    def _lost(self, request: Any, client_address: Any) -> None:
        """End a connection whose handler will never run, in the thread that has cancelled it."""
        try:
            self.refuse_request(request, client_address)
        except BaseException:
            self._failed(request, client_address)

    def refuse_request(self, request: Any, client_address: Any) -> None:
        """End a connection for which there is no room. An override must not wait either.

        It is called in the loop's thread, or in the thread that cancels the handlers of an executor.

        What the client has sent is read, so that the client sees an end of file and not a reset.
        """
        if isinstance(request, socket.socket):
            turn_away(request, self._refusal())
        self.shutdown_request(request)

    def _refusal(self) -> bytes:
        return b""

    def server_close(self) -> None:
        """Close the listener, then wait for the handlers of accepted connections.

        Call `shutdown` first if `serve_forever` still runs.

        Raises:
            RuntimeError: Called in the thread that runs `serve_forever`, by a signal handler perhaps.
            TimeoutError: `shutdown_timeout` ran out; the message says which handlers still run, for how long, and
                where. The server is closed all the same.
        """
        if self._loop.is_mine:
            # The interrupted code may not be in a state to be closed.
            raise RuntimeError("server_close() cannot be called within serve_forever(): call shutdown() there")
        self._loop.expected = False
        handlers: Handlers | None = vars(self).get("pool_handlers")
        if handlers is None:
            super().server_close()
            return
        begun = monotonic()
        timeout = waiting_limit("shutdown_timeout", self.shutdown_timeout) if self.block_on_close else 0.0
        self._close_listener(timeout)
        if self.block_on_close:
            handlers.close(timeout, begun)
        elif handlers.owned:
            handlers.executor.shutdown(wait=False)

    def _close_listener(self, timeout: float | None) -> None:
        """Close the listener, and what has no handler, within `timeout` seconds."""
        super().server_close()

    def join(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds until no request is queued or handled; the server goes on meanwhile.

        Returns:
            False if `timeout` ran out.

        Raises:
            TypeError: `timeout` is not a number.
            ValueError: `timeout` is NaN.
        """
        limit = None if timeout is None else min(time_limit("timeout", timeout), threading.TIMEOUT_MAX)
        return self.pool_handlers.join(limit)
