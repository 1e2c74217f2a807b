"""Several processes that serve one address, each with a pool of its own, under a watchdog.

The parent binds once and keeps the socket open for ever, so that no connection is refused while children die. It needs
a function that any process can import, and a guarded main module, as `multiprocessing` does:

```python
from http.server import SimpleHTTPRequestHandler

from ebbpool import prefork
from ebbpool.socketserver import AdaptivePoolHTTPServer


def serve(child: prefork.Child) -> None:
    child.serve(AdaptivePoolHTTPServer.from_socket(child.listener, SimpleHTTPRequestHandler))


if __name__ == "__main__":
    raise SystemExit(prefork.run(serve, bind=("127.0.0.1", 8000)))
```

Signals to the parent, after gunicorn's habits:

| signal | what happens |
|---|---|
| SIGTERM, SIGINT | every child stops gracefully, within `graceful_timeout`; a second one stops them at once |
| SIGQUIT | every child is killed at once |
| SIGHUP | the children are replaced one by one: a new one is ready before the old one stops |
| SIGTTIN, SIGTTOU | one child more, one less (but one at least) |

Windows knows neither SIGQUIT, SIGHUP, SIGTTIN nor SIGTTOU, and its SIGTERM kills the parent before it can do anything:
the children notice that, and stop gracefully by themselves. Ctrl-C and Ctrl-Break do what SIGINT does.

Children are started by multiprocessing's fork server, or spawned, and never forked from this process. What is forked
from a child, or from the parent, has the handlers of signals that were there before, and no part in any of this.

What happens is logged to ``ebbpool.prefork``, as lines of ``key=value``; the record has the same values as attributes.
Whatever is in order has the level INFO, which Python shows only if logging is set up to. While `run` runs, `sys.stdout`
and `sys.stderr` hold nobody up, in the parent and in the children: if nobody reads them, lines are dropped and counted.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

from ebbpool._checks import above_zero, seconds, whole
from ebbpool._interpreter import available_cpus
from ebbpool._output import unhindered
from ebbpool._prefork.bind import Bind, Listeners
from ebbpool._prefork.child import Child, Server, log
from ebbpool._prefork.parent import Parent, context_of
from ebbpool._prefork.watchdog import NEVER_STARTED, STOPPED, UNFINISHED, Watchdog

__all__ = ["NEVER_STARTED", "STOPPED", "UNFINISHED", "Bind", "Child", "Server", "run"]


def run(
    serve: Callable[[Child], object],
    *,
    bind: Bind,
    processes: int | None = None,
    backlog: int = 1024,
    reuse_port: bool = False,
    context: str | None = None,
    graceful_timeout: float = 30.0,
    heartbeat_timeout: float = 30.0,
    start_timeout: float = 30.0,
) -> int:
    """Runs `serve` in several processes until a signal says stop. Main thread only.

    A child that dies is replaced: at once if it had served for a quarter of a second, otherwise after a delay that
    doubles from 0.1 to 10 seconds. If no child of the first ones ever gets ready, that is the end: what fails at start
    fails again, and whoever started this ought to know.

    If the parent dies, the children stop by themselves, gracefully.

    Args:
        serve: Called with a `Child` in each process; picklable. It is to call `Child.ready` once it serves, to return
            once `Child.stopping` is set, and best leaves all of that to `Child.serve`.
        bind: ``(host, port)``, ``"host:port"``, ``"[host]:port"``, ``"unix:path"``, or a bound socket, which stays the
            caller's. The file that a dead server left at `path` is removed.
        processes: How many; one per available processor if None.
        backlog: How many connections may wait to be accepted.
        reuse_port: Whether each child has a listening socket of its own (``SO_REUSEPORT``), among which the kernel
            spreads connections evenly whoever is busy. Then a connection waits for the very child it was dealt to, and
            for its replacement if it dies; those that wait for a child that SIGTTOU takes away are lost.
        context: "forkserver" or "spawn"; None for the first of these that the system has.
        graceful_timeout: Seconds that a child may take to stop before it is killed.
        heartbeat_timeout: Seconds without a sign of life after which a child is killed and replaced; see `Child.beat`.
        start_timeout: Seconds that a child may take to get ready before it is killed; as long, and three seconds at
            least, may the fork server take to answer. One that does not is killed as well, and replaced.

    Returns:
        The exit status: `STOPPED` (0) if every child ended by itself, `UNFINISHED` (1) if one had to be killed or
        failed while it stopped, `NEVER_STARTED` (3) if none ever got ready.

    Raises:
        TypeError: An argument is of the wrong type, or `serve` cannot be pickled; no process was started.
        ValueError: An argument is out of range, `bind` cannot be encoded, or `serve` is where no other process can
            import it.
        OSError: The address is taken, or cannot be had; no process was started.
        RuntimeError: This is not the main thread, or the main module is being imported by a child.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("prefork.run() handles signals: it has to be called in the main thread")
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(
            "prefork.run() was called while a child imports the main module: put it under if __name__ == '__main__'"
        )
    chosen = context_of(context)
    _check_importable(serve)
    watchdog = Watchdog(
        available_cpus() if processes is None else whole("processes", processes, 1),
        graceful_timeout=seconds("graceful_timeout", graceful_timeout),
        heartbeat_timeout=above_zero("heartbeat_timeout", heartbeat_timeout),
        start_timeout=above_zero("start_timeout", start_timeout),
    )
    listeners = Listeners(bind, whole("backlog", backlog, 1), bool(reuse_port))
    with contextlib.closing(listeners), unhindered():
        log(
            logging.INFO,
            {
                "event": "listening",
                "pid": os.getpid(),
                "address": listeners.shown,
                "processes": watchdog.processes,
                "context": chosen.get_start_method(),
            },
        )
        return Parent(serve, listeners, watchdog, chosen).run()


def _check_importable(serve: Any) -> None:
    if not callable(serve):
        raise TypeError(f"serve must be callable, not {serve!r}")
    try:
        pickled = bytes(ForkingPickler.dumps(serve))
    except Exception as error:
        raise TypeError(f"serve must be picklable, such as a function at the top of a module: {error}") from error
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    name = "" if spec is None else spec.name
    # multiprocessing imports the main module in a child, but neither a package's nor one that came from no file.
    lacking = name.endswith("__main__") or (not name and getattr(main, "__file__", None) is None)
    if lacking and b"__main__" in pickled:
        raise ValueError(
            f"serve must be in a module that another process can import, not in {name or '__main__'!r}: {serve!r}"
        )
