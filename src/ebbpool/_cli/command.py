"""``python -m ebbpool``: which ebbpool this is and what it runs on, and ``serve``, a web server for a directory."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import ebbpool
from ebbpool._interpreter import available_cpus, interpreter
from ebbpool._pool.settings import DEFAULT_MAX_WORKERS


def describe() -> str:
    """Return the version, the core that runs, the interpreter and the processors, one to a line."""
    core = "compiled" if ebbpool.COMPILED else "plain Python"
    return "\n".join(
        (
            f"ebbpool {ebbpool.__version__}",
            f"core: {core}",
            f"interpreter: {interpreter()}",
            f"processors: {available_cpus()}",
        )
    )


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


class _NoCgi(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        parser.error("--cgi is not offered: Python has deprecated CGI in http.server, and removes it in 3.15")


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    result = argparse.ArgumentParser(
        prog="python -m ebbpool",
        usage="%(prog)s [-h] [--version] [COMMAND ...]",
        description="Without a command: tell which ebbpool this is, and what it runs on.",
    )
    result.add_argument("--version", action="version", version=f"ebbpool {ebbpool.__version__}")
    commands = result.add_subparsers(title="commands", dest="command", metavar="COMMAND", prog=result.prog)
    _add_serve(commands)
    return result


def _add_serve(commands: Any) -> None:
    serve = commands.add_parser(
        "serve",
        usage="python -m ebbpool serve [PORT] [OPTION ...]",
        help="serve a directory over HTTP, as python -m http.server does, on the pool",
        description="Serve a directory over HTTP, as python -m http.server does, on an adaptive pool of threads. "
        "Ctrl-C and SIGTERM end it once what runs is done; a second one ends it at once.",
        allow_abbrev=False,
    )
    serve.set_defaults(refuse=serve.error)
    serve.add_argument(
        "port",
        metavar="PORT",
        nargs="?",
        default=8000,
        type=_whole(0, 65535),
        help="port to bind; 0 for any that is free (%(default)s)",
    )
    serve.add_argument("-b", "--bind", metavar="ADDRESS", help="address to bind (all interfaces)")
    serve.add_argument(
        "-d", "--directory", metavar="DIR", default=".", type=_directory, help="directory to serve (the current one)"
    )
    serve.add_argument(
        "-p",
        "--protocol",
        metavar="VERSION",
        default="HTTP/1.1",
        choices=("HTTP/1.0", "HTTP/1.1"),
        help="HTTP version of the replies; clients can keep their connections with HTTP/1.1 alone (%(default)s)",
    )
    serve.add_argument("--cgi", action=_NoCgi, nargs=0, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    serve.add_argument("-q", "--quiet", action="store_true", help="write no line per request")
    serve.add_argument(
        "--processes",
        metavar="N",
        type=_whole(1),
        help="serve with N processes under a watchdog, each with a pool of its own (in this process)",
    )
    pool = serve.add_argument_group("the pool, in each process")
    pool.add_argument(
        "--max-workers", metavar="N", type=_whole(1), default=DEFAULT_MAX_WORKERS, help="most threads (%(default)s)"
    )
    pool.add_argument(
        "--min-workers", metavar="N", type=_whole(0), default=0, help="threads that stay, however idle (%(default)s)"
    )
    pool.add_argument(
        "--min-spare-workers",
        metavar="N",
        type=_whole(0),
        default=0,
        help="idle threads to keep ahead of demand (%(default)s)",
    )
    pool.add_argument(
        "--keep-alive",
        metavar="SECONDS",
        type=_seconds,
        default=10.0,
        help="after which an idle thread leaves; inf for never (%(default)g)",
    )
    pool.add_argument(
        "--max-queue",
        metavar="N",
        type=_whole(0),
        help="most requests that may wait for a thread, more are told 503 (no limit)",
    )
    times = serve.add_argument_group("time limits")
    for name, default, text in (
        ("--header-timeout", 10.0, "for the head of a request to arrive"),
        ("--idle-timeout", 60.0, "between two requests of a connection"),
        ("--request-timeout", 30.0, "for a client to take, or send, some more of what a thread waits for"),
        ("--shutdown-timeout", 30.0, "for what runs to be done, at the end"),
    ):
        times.add_argument(name, metavar="SECONDS", type=_some_seconds, default=default, help=f"{text} (%(default)g)")


def _serve(*, command: str, refuse: Callable[[str], NoReturn], **options: Any) -> int:
    for name in ("min_workers", "min_spare_workers"):
        if options[name] > options["max_workers"]:
            flag = name.replace("_", "-")
            refuse(f"argument --{flag}: {options[name]} is more than --max-workers, {options['max_workers']}")
    # Imported here, because it imports http.server and all that this needs.
    from ebbpool._cli.serve import Options, serve

    return serve(Options(**options))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: The arguments, without the program's name; those of the process if None.

    Returns:
        The exit status.

    Raises:
        SystemExit: From argparse: 0 after ``--help`` or ``--version``, 2 for an argument it does not know.
    """
    arguments = vars(parser().parse_args(argv))
    if arguments["command"] == "serve":
        return _serve(**arguments)
    print(describe())
    return 0
