"""``python -m ebbpool``: which ebbpool this is, ``serve``, a web server for a directory, and ``top``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import ebbpool
from ebbpool._cli.options import Options, add_options
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


class _NoCgi(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        parser.error("--cgi is not supported: http.server deprecates CGI, and Python 3.15 removes it")


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    result = argparse.ArgumentParser(
        prog="python -m ebbpool",
        usage="%(prog)s [-h] [--version] [COMMAND ...]",
        description="Without a command: print the version, and what it runs on.",
    )
    result.add_argument("--version", action="version", version=f"ebbpool {ebbpool.__version__}")
    commands = result.add_subparsers(title="commands", dest="command", metavar="COMMAND", prog=result.prog)
    _add_serve(commands)
    _add_top(commands)
    return result


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
    serve.add_argument("--cgi", action=_NoCgi, nargs=0, default=argparse.SUPPRESS, help=argparse.SUPPRESS)


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


def _serve(*, command: str, refuse: Callable[[str], NoReturn], **options: Any) -> int:
    for name in ("min_workers", "min_spare_workers"):
        if options[name] > options["max_workers"]:
            flag = name.replace("_", "-")
            refuse(f"argument --{flag}: {options[name]} is more than --max-workers, {options['max_workers']}")
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
    if arguments["command"] == "serve":
        return _serve(**arguments)
    if arguments.pop("command") == "top":
        # Imported here, because it imports what talks to other processes.
        from ebbpool._top.run import run

        return run(**arguments)
    print(describe())
    return 0
