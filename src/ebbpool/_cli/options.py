"""The options of ``python -m ebbpool serve``, and of ``run``: each is declared once, with its type and its help."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields
from typing import Any, Final

from ebbpool._pool.executor_base import DEFAULT_MAX_WORKERS

POOL: Final = "the pool, in each process"
OF_POOL: Final = "max_workers", "min_workers", "min_spare_workers", "keep_alive"
"""Those that are for any pool."""
TIMES: Final = "time limits"


def _whole(least: int, most: int | None = None) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < least or (most is not None and value > most):
            bounds = f"at least {least}" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"must be {bounds}, not {text}")
        return value

    # The name that argparse gives the type in its error messages.
    number.__name__ = "whole number"
    return number


def _seconds(text: str) -> float:
    value = float(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, at least 0, not {text}")
    return value


def _some_seconds(text: str) -> float:
    value = _seconds(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a finite number of seconds above 0, not {text}")
    return value


_seconds.__name__ = _some_seconds.__name__ = "number of seconds"


def _directory(text: str) -> str:
    try:
        path = os.path.abspath(text)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"the current directory is gone: {error}") from None
    if not os.path.isdir(path):
        raise argparse.ArgumentTypeError(f"no such directory: {text!r}")
    return path


def _address(text: str) -> str:
    # Imported here, because it imports multiprocessing.
    from ebbpool._prefork.bind import address_of

    try:
        address_of(text, "it")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _option(*short: str, group: str = "", **how: Any) -> Any:
    return field(metadata={"short": short, "group": group, "how": how})


def _threads(text: str, least: int, default: int | None) -> Any:
    return _option(group=POOL, metavar="N", type=_whole(least), default=default, help=text)


def _time(text: str, default: float, group: str = TIMES, kind: Callable[[str], float] = _some_seconds) -> Any:
    return _option(group=group, metavar="SECONDS", type=kind, default=default, help=f"{text} (%(default)g)")


@dataclass(frozen=True)
class Options:
    """The options. Times are in seconds; with `processes` None only this process serves."""

    port: int = _option(
        metavar="PORT",
        nargs="?",
        default=8000,
        type=_whole(0, 65535),
        help="port to bind; 0 for any that is free (%(default)s)",
    )
    bind: str | None = _option("-b", metavar="ADDRESS", help="address to bind (all interfaces)")
    directory: str = _option(
        "-d", metavar="DIR", default=".", type=_directory, help="directory to serve (the current one)"
    )
    protocol: str = _option(
        "-p",
        metavar="VERSION",
        default="HTTP/1.1",
        choices=("HTTP/1.0", "HTTP/1.1"),
        help="HTTP version of the replies; only HTTP/1.1 keeps connections open (%(default)s)",
    )
    quiet: bool = _option("-q", action="store_true", help="do not log requests")
    processes: int | None = _option(
        metavar="N",
        type=_whole(1),
        help="serve from N supervised processes, each with its own pool (only this process)",
    )
    metrics: str | None = _option(
        metavar="HOST:PORT",
        type=_address,
        help="serve Prometheus metrics of all processes at /metrics there (off)",
    )
    max_workers: int = _threads("maximum number of threads (%(default)s)", 1, DEFAULT_MAX_WORKERS)
    min_workers: int = _threads("threads to keep even when idle (%(default)s)", 0, 0)
    min_spare_workers: int = _threads("idle threads to keep ahead of demand (%(default)s)", 0, 0)
    keep_alive: float = _time("after which an idle thread exits; inf for never", 10.0, POOL, _seconds)
    max_queue: int | None = _threads("requests that may wait for a thread; any more get a 503 (no limit)", 0, None)
    header_timeout: float = _time("for the head of a request to arrive", 10.0)
    idle_timeout: float = _time("between two requests on a connection", 60.0)
    request_timeout: float = _time("for a client to send or take more data while a thread waits", 30.0)
    shutdown_timeout: float = _time("for running requests to finish at shutdown", 30.0)


OF_SERVER: Final = tuple(option.name for option in fields(Options) if option.metadata["group"])
"""The options that the server has as attributes of the same names."""


def add_options(parser: argparse.ArgumentParser, only: Collection[str] | None = None) -> None:
    groups: dict[str, Any] = {"": parser}
    for option in fields(Options):
        about = option.metadata
        if only is not None and option.name not in only:
            continue
        if about["group"] not in groups:
            groups[about["group"]] = parser.add_argument_group(about["group"])
        name = option.name if option.name == "port" else "--" + option.name.replace("_", "-")
        groups[about["group"]].add_argument(*about["short"], name, **about["how"])
