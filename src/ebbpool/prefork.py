"""Several processes that serve one address, each with its own pool, under a watchdog.

The parent binds once and keeps the socket open, so that no connection is refused while children die. It needs a
function that any process can import, and a guarded main module, as `multiprocessing` does::

    from http.server import SimpleHTTPRequestHandler

    from ebbpool import prefork
    from ebbpool.socketserver import AdaptivePoolHTTPServer


    def serve(child: prefork.Child) -> None:
        child.serve(AdaptivePoolHTTPServer.from_socket(child.listener, SimpleHTTPRequestHandler))


    if __name__ == "__main__":
        raise SystemExit(prefork.run(serve, bind=("127.0.0.1", 8000)))

Signals to the parent, as in gunicorn:

* SIGTERM, SIGINT: every child stops gracefully, within `graceful_timeout`; a second one stops them at once.
* SIGQUIT: every child is killed at once.
* SIGHUP: the children are replaced one by one: a new one is ready before the old one stops.

Children are forked from a template, a process of one thread that is started in a new interpreter, and never from this
process. Without `preload` it has imported nothing of yours, and each child imports what it needs. With it, the template
imports the application once, and a child is there some milliseconds after another one has died; but what the modules do
as they are imported is then shared, as under gunicorn's ``preload_app``: open connections in `serve`, and start threads
there. Windows cannot fork, so this module cannot be imported there.

A process that is forked from a child, or from the parent, has the signal handlers from before, and is not watched.
As process 1, or as a subreaper, the parent reaps orphaned processes, except those that `subprocess` or
`multiprocessing` started in this process.

Events are logged to ``ebbpool.prefork``, as lines of ``key=value``; the record has the same values as attributes.
Normal events have the level INFO, which Python shows only if logging is set up for that. A handler that may
wait for a reader belongs behind a `logging.handlers.QueueHandler`: a parent that waits watches no child.
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

if not hasattr(os, "fork"):
    raise ImportError(
        "ebbpool.prefork forks processes, which this system cannot: run one process, with ebbpool.socketserver, or "
        "several, each on its own port, behind a proxy"
    )

from ebbpool._checks import above_zero, seconds, whole
from ebbpool._interpreter import available_cpus
from ebbpool._prefork.bind import Bind, listening, shown
from ebbpool._prefork.child import Child, log, main
from ebbpool._prefork.parent import Parent
from ebbpool._prefork.watchdog import NEVER_STARTED, STOPPED, UNFINISHED, Limits

__all__ = ["NEVER_STARTED", "STOPPED", "UNFINISHED", "Bind", "Child", "run"]


def run(
    serve: Callable[[Child], object],
    *,
    bind: Bind,
    processes: int | None = None,
    backlog: int = 1024,
    preload: bool = False,
    graceful_timeout: float = 30.0,
    heartbeat_timeout: float = 30.0,
    start_timeout: float = 30.0,
) -> int:
    """Run `serve` in several processes until a signal ends it. Main thread only.

    A child that dies is replaced: at once if it had served for a quarter of a second, otherwise after a delay that
    doubles from 0.1 to 10 seconds. If none of the first children ever gets ready, `run` gives up and returns
    `NEVER_STARTED`.

    If the parent dies, the children stop gracefully.

    Args:
        serve: Called with a `Child` in each process; picklable. It has to call `Child.ready` once it serves, and to
            return once `Child.stopping` is set. `Child.serve` does all of that.
        bind: ``(host, port)``, ``"unix:path"``, or a bound socket, which stays the caller's. The file that a dead
            server left at `path` is removed. ``"unix:path?mode=660"`` sets who may connect, in octal; without it the
            umask decides.
        processes: How many children; one per available CPU if None.
        backlog: How many connections may wait to be accepted.
        preload: Whether the main module and that of `serve` are imported once, by the template, and not by each child.
            SIGHUP imports all anew. Modules that start threads as they are imported do not belong there.
        graceful_timeout: Seconds that a child may take to stop before it is killed.
        heartbeat_timeout: Seconds without a sign of life after which a child is killed and replaced; see `Child.beat`.
        start_timeout: Seconds that a child may take to get ready before it is killed; for the first ones that includes
            what the template takes to import.

    Returns:
        The exit status, `STOPPED` (0) if every child exited on its own, `UNFINISHED` (1) if one had to be killed or
        failed while it stopped, `NEVER_STARTED` (3) if none ever got ready.

    Raises:
        TypeError: An argument is of the wrong type, or `serve` cannot be pickled; no process was started.
        ValueError: An argument is out of range, `bind` cannot be encoded, or no other process can import `serve`.
        OSError: The address is taken, or cannot be bound; no process was started.
        RuntimeError: This is not the main thread, or the main module is being imported by a child.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("prefork.run() handles signals: it has to be called in the main thread")
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(
            "prefork.run() was called while a child imports the main module: put it under if __name__ == '__main__'"
        )
    if not isinstance(preload, bool):
        raise TypeError(f"preload must be True or False, not {preload!r}")
    _check_importable(serve)
    count = available_cpus() if processes is None else whole("processes", processes, 1)
    limits = Limits(
        start_timeout=above_zero("start_timeout", start_timeout),
        heartbeat_timeout=above_zero("heartbeat_timeout", heartbeat_timeout),
        graceful_timeout=seconds("graceful_timeout", graceful_timeout),
    )
    with listening(bind, whole("backlog", backlog, 1)) as listener:
        log(logging.INFO, "listening", address=shown(listener), processes=count, preload=preload)
        return Parent(functools.partial(main, serve, limits), listener, count, limits, preload).run()


def _check_importable(serve: Any) -> None:
    if not callable(serve):
        raise TypeError(f"serve must be callable, not {serve!r}")
    try:
        pickled = pickle.dumps(serve)
    except Exception as error:
        raise TypeError(f"serve must be picklable, such as a function at the top of a module: {error}") from error
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    name = "" if spec is None else spec.name
    # multiprocessing imports the main module in a child, except that of a package, or one that has no file.
    lacking = name.endswith("__main__") or (not name and getattr(main, "__file__", None) is None)
    if lacking and b"__main__" in pickled:
        raise ValueError(
            f"serve must be in a module that another process can import, not in {name or '__main__'!r}: {serve!r}"
        )
