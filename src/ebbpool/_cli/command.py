"""``python -m ebbpool``: which ebbpool this is, and its commands ``run``, ``serve`` and ``top``."""

from __future__ import annotations

import argparse
import math
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from pkgutil import get_importer
from types import ModuleType
from typing import Any, NoReturn

import ebbpool
from ebbpool._interpreter import available_cpus, interpreter
from ebbpool._pool.executor_base import DEFAULT_MAX_WORKERS


def _checked(kind: Callable[[str], Any], wanted: str, holds: Callable[[Any], bool]) -> Callable[[str], Any]:
    def check(text: str) -> Any:
        value = kind(text)
        if not holds(value):
            raise argparse.ArgumentTypeError(f"must be {wanted}, not {text}")
        return value

    # argparse calls the type so in its own error messages.
    check.__name__ = "whole number" if kind is int else "number of seconds"
    return check


def _whole(least: int) -> Callable[[str], Any]:
    return _checked(int, f"at least {least}", lambda number: number >= least)


_port = _checked(int, "from 0 to 65535", lambda number: 0 <= number <= 65535)
_seconds = _checked(float, "a number of seconds, at least 0", lambda seconds: seconds >= 0)
_some_seconds = _checked(float, "a finite number of seconds above 0", lambda seconds: 0 < seconds < math.inf)


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


def _describe(_: argparse.Namespace) -> int:
    print(f"ebbpool {ebbpool.__version__}")
    print(f"core: {'compiled' if ebbpool.COMPILED else 'plain Python'}")
    print(f"interpreter: {interpreter()}")
    print(f"processors: {available_cpus()}")
    return 0


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m ebbpool",
        usage="%(prog)s [-h] [--version] [COMMAND ...]",
        description="Without a command: print the version, and what it runs on.",
    )
    result.set_defaults(act=_describe)
    result.add_argument("--version", action="version", version=f"ebbpool {ebbpool.__version__}")
    commands = result.add_subparsers(title="commands", metavar="COMMAND", prog=result.prog)
    _add_run(commands)
    _add_serve(commands)
    _add_top(commands)
    return result


def _add_run(commands: Any) -> None:
    run = commands.add_parser(
        "run",
        usage="python -m ebbpool run [OPTION ...] (-m MODULE | SCRIPT) [ARGUMENT ...]",
        help="run a program unchanged, with all its thread work on one pool",
        description="Run a module or a script as Python does, after ebbpool.install(): everything it sends to threads "
        "through anyio, trio, asyncio or uvloop runs on one pool. Options after the program belong to the program.",
        allow_abbrev=False,
    )
    run.set_defaults(act=_run, refuse=run.error)
    run.add_argument("-m", dest="module", metavar="MODULE", nargs=argparse.REMAINDER, help="the module to run")
    run.add_argument(
        "script", metavar="SCRIPT", nargs=argparse.REMAINDER, help="or the script to run, with its arguments"
    )
    run.add_argument("--explain", action="store_true", help="print on standard error what was switched in each library")
    _add_pool(run)


def _add_serve(commands: Any) -> None:
    serve = commands.add_parser(
        "serve",
        usage="python -m ebbpool serve [PORT] [OPTION ...]",
        help="serve a directory over HTTP, as python -m http.server does, on the pool",
        description="Serve a directory over HTTP, as python -m http.server does, on an adaptive pool of threads. "
        "Ctrl-C and SIGTERM stop it once running requests are done; a second one stops it at once.",
        allow_abbrev=False,
    )
    serve.set_defaults(act=_serve, refuse=serve.error)
    option = serve.add_argument
    port = "port to bind; 0 for any that is free (%(default)s)"
    option("port", metavar="PORT", nargs="?", default=8000, type=_port, help=port)
    option("-b", "--bind", metavar="ADDRESS", help="address to bind (all interfaces)")
    directory = "directory to serve (the current one)"
    option("-d", "--directory", metavar="DIR", default=".", type=_directory, help=directory)
    protocols = ("HTTP/1.0", "HTTP/1.1")
    protocol = "HTTP version of the replies; only HTTP/1.1 keeps connections open (%(default)s)"
    option("-p", "--protocol", metavar="VERSION", default="HTTP/1.1", choices=protocols, help=protocol)
    option("-q", "--quiet", action="store_true", help="do not log requests")
    processes = "serve from N supervised processes, each with its own pool (only this process)"
    option("--processes", metavar="N", type=_whole(1), help=processes)
    metrics = "serve Prometheus metrics of all processes at /metrics there (off)"
    option("--metrics", metavar="HOST:PORT", type=_address, help=metrics)
    queue = "requests that may wait for a thread; any more get a 503 (no limit)"
    _add_pool(serve).add_argument("--max-queue", metavar="N", type=_whole(0), help=queue)
    times = serve.add_argument_group("time limits")
    for name, default, text in (
        ("header", 10.0, "for the head of a request to arrive"),
        ("idle", 60.0, "between two requests on a connection"),
        ("request", 30.0, "for a client to send or take more data while a thread waits"),
        ("shutdown", 30.0, "for running requests to finish at shutdown"),
    ):
        _add_seconds(times, f"--{name}-timeout", default, text, _some_seconds)


def _add_pool(parser: argparse.ArgumentParser) -> Any:
    pool = parser.add_argument_group("the pool, in each process")
    for name, least, default, text in (
        ("--max-workers", 1, DEFAULT_MAX_WORKERS, "maximum number of threads"),
        ("--min-workers", 0, 0, "threads to keep even when idle"),
        ("--min-spare-workers", 0, 0, "idle threads to keep ahead of demand"),
    ):
        pool.add_argument(name, metavar="N", type=_whole(least), default=default, help=f"{text} (%(default)s)")
    _add_seconds(pool, "--keep-alive", 10.0, "after which an idle thread exits; inf for never", _seconds)
    return pool


def _add_seconds(group: Any, name: str, default: float, text: str, kind: Callable[[str], Any]) -> None:
    group.add_argument(name, metavar="SECONDS", type=kind, default=default, help=f"{text} (%(default)g)")


def _add_top(commands: Any) -> None:
    top = commands.add_parser(
        "top",
        usage="python -m ebbpool top [PID | PATH] [OPTION ...]",
        help="watch the pools of another process: threads, queues, running tasks, and why they grew",
        description="Watch the pools of another process. That process listens if it was started with "
        "EBBPOOL_MONITOR=PATH or calls ebbpool.monitor.listen. top attaches to any other process if both run the "
        "same CPython, 3.14 or later. Without PID or PATH: list the processes that listen.",
        allow_abbrev=False,
    )
    top.set_defaults(act=_top)
    top.add_argument("target", metavar="PID | PATH", nargs="?", help="process ID, or path of the socket it listens on")
    top.add_argument("--once", action="store_true", help="print one screen and exit")
    top.add_argument("--json", dest="as_json", action="store_true", help="print one JSON object, with all stacks")
    top.add_argument(
        "--stacks", action="store_true", help="print each task's stack when there is no keyboard to ask for it"
    )


def _check_pool(options: argparse.Namespace) -> Callable[[str], NoReturn]:
    """Refuse sizes that do not fit together; return what refuses wrong use of this command."""
    refuse: Callable[[str], NoReturn] = vars(options).pop("refuse")
    for flag, least in (("min-workers", options.min_workers), ("min-spare-workers", options.min_spare_workers)):
        if least > options.max_workers:
            refuse(f"argument --{flag}: {least} is more than --max-workers, {options.max_workers}")
    return refuse


def _run(options: argparse.Namespace) -> int:
    """Install a pool, and run a module or a script as Python itself does."""
    refuse, settings = _check_pool(options), vars(options)
    module, script, explain = map(settings.pop, ("module", "script", "explain"))
    if not module and not script:
        refuse("say which program: -m MODULE, or SCRIPT")
    pool = ebbpool.AdaptiveExecutor(thread_name_prefix="ebbpool", **settings)
    ebbpool.install(pool, explain=_say if explain else None)
    # Unlike with `runpy.run_module` it stays the main module while threads go on after its last line.
    main: Any = ModuleType("__main__")
    sys.modules["__main__"] = main
    # What Python itself calls.
    run_module: Callable[..., object] = runpy._run_module_as_main  # type: ignore[attr-defined]  # not in typeshed
    if module:
        sys.argv = module
        run_module(module[0])
        return 0
    sys.argv, path = script, os.path.abspath(script[0])
    if get_importer(path) is not None:
        # A directory, or an archive.
        sys.path[0] = path
        run_module("__main__", False)
        return 0
    sys.path[0] = os.path.dirname(os.path.realpath(path))
    main.__file__, main.__cached__ = path, None
    loader: Any
    if path.endswith(".pyc"):
        loader = main.__loader__ = SourcelessFileLoader("__main__", path)
        code = loader.get_code("__main__")
    else:
        loader = main.__loader__ = SourceFileLoader("__main__", path)
        code = loader.source_to_code(loader.get_data(path), path)
    exec(code, main.__dict__)
    return 0


def _say(line: str) -> None:
    print(f"ebbpool: {line}", file=sys.stderr, flush=True)


def _serve(options: argparse.Namespace) -> int:
    _check_pool(options)
    # Imported here, because it imports http.server and all that this needs.
    from ebbpool._cli.serve import serve

    return serve(options)


def _top(options: argparse.Namespace) -> int:
    # Imported here, because it imports what talks to other processes.
    from ebbpool._top.run import run

    return run(**vars(options))


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of this process; return the exit status."""
    options = parser().parse_args(argv)
    act: Callable[[argparse.Namespace], int] = vars(options).pop("act")
    return act(options)
