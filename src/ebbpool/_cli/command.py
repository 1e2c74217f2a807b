"""``python -m ebbpool``: which ebbpool this is, and its commands ``run``, ``serve`` and ``top``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import ebbpool
from ebbpool._cli.options import OF_POOL, Options, add_options
from ebbpool._interpreter import available_cpus, interpreter


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


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m ebbpool",
        usage="%(prog)s [-h] [--version] [COMMAND ...]",
        description="Without a command: print the version, and what it runs on.",
    )
    result.add_argument("--version", action="version", version=f"ebbpool {ebbpool.__version__}")
    commands = result.add_subparsers(title="commands", dest="command", metavar="COMMAND", prog=result.prog)
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
    run.set_defaults(refuse=run.error)
    run.add_argument("-m", dest="module", metavar="MODULE", nargs=argparse.REMAINDER, help="the module to run")
    run.add_argument(
        "script", metavar="SCRIPT", nargs=argparse.REMAINDER, help="or the script to run, with its arguments"
    )
    run.add_argument(
        "--executors", action="store_true", help="also put every ThreadPoolExecutor that the program makes on the pool"
    )
    run.add_argument("--explain", action="store_true", help="print on standard error what was switched in each library")
    add_options(run, OF_POOL)


def _add_serve(commands: Any) -> None:
    serve = commands.add_parser(
        "serve",
        usage="python -m ebbpool serve [PORT] [OPTION ...]",
        help="serve a directory over HTTP, as python -m http.server does, on the pool",
        description="Serve a directory over HTTP, as python -m http.server does, on an adaptive pool of threads. "
        "Ctrl-C and SIGTERM stop it once running requests are done; a second one stops it at once.",
        allow_abbrev=False,
    )
    serve.set_defaults(refuse=serve.error)
    add_options(serve)


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
    top.add_argument("target", metavar="PID | PATH", nargs="?", help="process ID, or path of the socket it listens on")
    top.add_argument("--once", action="store_true", help="print one screen and exit")
    top.add_argument("--json", dest="as_json", action="store_true", help="print one JSON object, with all stacks")
    top.add_argument(
        "--stacks", action="store_true", help="print each task's stack when there is no keyboard to ask for it"
    )


def _check_pool(refuse: Callable[[str], NoReturn], options: dict[str, Any]) -> None:
    for name in ("min_workers", "min_spare_workers"):
        if options[name] > options["max_workers"]:
            flag = name.replace("_", "-")
            refuse(f"argument --{flag}: {options[name]} is more than --max-workers, {options['max_workers']}")


def _run(*, command: str, refuse: Callable[[str], NoReturn], **options: Any) -> int:
    _check_pool(refuse, options)
    if not options["module"] and not options["script"]:
        refuse("say which program: -m MODULE, or SCRIPT")
    from ebbpool._cli.run import run

    return run(**options)


def _serve(*, command: str, refuse: Callable[[str], NoReturn], **options: Any) -> int:
    _check_pool(refuse, options)
    # Imported here, because it imports http.server and all that this needs.
    from ebbpool._cli.serve import serve

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
    if arguments["command"] == "run":
        return _run(**arguments)
    if arguments["command"] == "serve":
        return _serve(**arguments)
    if arguments.pop("command") == "top":
        # Imported here, because it imports what talks to other processes.
        from ebbpool._top.run import run

        return run(**arguments)
    print(describe())
    return 0
