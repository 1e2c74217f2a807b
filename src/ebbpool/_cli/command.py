"""``python -m ebbpool``: which ebbpool this is, and its commands ``run`` and ``top``."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from pkgutil import get_importer
from types import ModuleType
from typing import Any, NoReturn

import ebbpool
from ebbpool._cli.begin import begin, pass_on
from ebbpool._interpreter import available_cpus, interpreter
from ebbpool._pool.executor_base import DEFAULT_MAX_WORKERS


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
    _add_top(commands)
    return result


def _add_run(commands: Any) -> None:
    run = commands.add_parser(
        "run",
        usage="python -m ebbpool run [OPTION ...] (-m MODULE | SCRIPT) [ARGUMENT ...]",
        help="run a program unchanged, with all its thread work on one pool",
        description="Run a module or a script as Python does, after ebbpool.install(): everything it sends to threads "
        "through anyio, trio, asyncio or uvloop runs on one pool. Pythons that it starts have one, too. Options "
        "after the program belong to the program.",
        allow_abbrev=False,
    )
    run.set_defaults(act=_run, refuse=run.error)
    run.add_argument("-m", dest="module", metavar="MODULE", nargs=argparse.REMAINDER, help="the module to run")
    run.add_argument(
        "script", metavar="SCRIPT", nargs=argparse.REMAINDER, help="or the script to run, with its arguments"
    )
    run.add_argument("--explain", action="store_true", help="print on standard error what was switched in each library")
    pool = run.add_argument_group("the pool")
    for name, default, text in (
        ("--max-workers", DEFAULT_MAX_WORKERS, "maximum number of threads"),
        ("--min-workers", 0, "threads to keep even when idle"),
        ("--min-spare-workers", 0, "idle threads to keep ahead of demand"),
    ):
        pool.add_argument(name, metavar="N", type=int, default=default, help=f"{text} (%(default)s)")
    keep_alive = "after which an idle thread exits; inf for never (10; never if there is one thread)"
    pool.add_argument("--keep-alive", metavar="SECONDS", type=float, help=keep_alive)


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


def _run(options: argparse.Namespace) -> int:
    """Install a pool, and run a module or a script as Python itself does."""
    settings = vars(options)
    module, script = map(settings.pop, ("module", "script"))
    refuse: Callable[[str], NoReturn] = settings.pop("refuse")
    if not module and not script:
        refuse("say which program: -m MODULE, or SCRIPT")
    try:
        begin(**settings)
    except ValueError as error:
        refuse(str(error))
    pass_on(settings)
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


def _top(options: argparse.Namespace) -> int:
    # Imported here, because it imports what talks to other processes.
    from ebbpool._top.run import run

    return run(**vars(options))


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of this process; return the exit status."""
    options = parser().parse_args(argv)
    act: Callable[[argparse.Namespace], int] = vars(options).pop("act")
    return act(options)
