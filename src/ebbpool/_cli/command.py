"""``python -m ebbpool``: which ebbpool this is, and its commands ``run`` and ``top``."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import ebbpool
from ebbpool._interpreter import LACKING, available_cpus, interpreter
from ebbpool._pool.executor_base import DEFAULT_MAX_WORKERS, Settings


def _describe(_: argparse.Namespace) -> int:
    print(f"ebbpool {ebbpool.__version__}")
    print(f"core: {'compiled' if ebbpool.COMPILED else 'plain Python'}")
    print(f"interpreter: {interpreter()}")
    print(f"CPUs: {available_cpus()}")
    # This looks at asyncio.
    importlib.import_module("ebbpool._loops")
    if LACKING:
        print(f"works without what this Python lacks: {', '.join(LACKING)}")
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
    """Have Python run a module or a script in the place of this process, and begin with a pool."""
    settings = vars(options)
    module, script = map(settings.pop, ("module", "script"))
    refuse: Callable[[str], NoReturn] = settings.pop("refuse")
    if not module and not script:
        refuse("say which program: -m MODULE, or SCRIPT")
    if sys.flags.ignore_environment or sys.flags.no_site:
        refuse("-E, -I and -S keep Python from reading what it is to begin with")
    pool = {name: value for name, value in settings.items() if name != "explain"}
    try:
        Settings(**pool, max_queue=None, max_wait=None)
    except ValueError as error:
        refuse(str(error))
    # The process has the same number afterwards.
    os.environ["EBBPOOL_RUN"] = f"{os.getpid()} {json.dumps(settings)}"
    folders = (os.path.join(os.path.dirname(__file__), "children"), os.environ.get("PYTHONPATH"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    options_of_python: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # not in typeshed
    command = [sys.executable, *options_of_python, *(["-m", *module] if module else script)]
    if sys.platform == "win32":
        # There, the other process would run beside the one that waits for this one.
        return subprocess.call(command)
    os.execv(sys.executable, command)


def _top(options: argparse.Namespace) -> int:
    # Imported here, because it imports what talks to other processes.
    from ebbpool._top.run import run

    return run(**vars(options))


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of this process; return the exit status."""
    options = parser().parse_args(argv)
    act: Callable[[argparse.Namespace], int] = vars(options).pop("act")
    return act(options)
