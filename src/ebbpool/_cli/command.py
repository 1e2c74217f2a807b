"""``python -m ebbpool``: which ebbpool this is, and its commands ``run``, ``serve`` and ``top``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, SourceFileLoader, SourcelessFileLoader
from importlib.util import find_spec
from pkgutil import get_importer
from types import ModuleType
from typing import Any, NoReturn

import ebbpool
from ebbpool._cli.options import OF_POOL, Options, add_options
from ebbpool._interpreter import available_cpus, interpreter


def _describe() -> int:
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
    serve.set_defaults(act=_serve, refuse=serve.error)
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
    top.set_defaults(act=_top)
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


def _run(
    *,
    refuse: Callable[[str], NoReturn],
    module: list[str] | None,
    script: list[str],
    executors: bool,
    explain: bool,
    **settings: Any,
) -> int:
    """Install a pool, and run a module or a script as Python itself does."""
    _check_pool(refuse, settings)
    if not module and not script:
        refuse("say which program: -m MODULE, or SCRIPT")
    pool = ebbpool.AdaptiveExecutor(thread_name_prefix="ebbpool", **settings)
    ebbpool.install(pool, executors=executors, explain=_say if explain else None)
    spec: ModuleSpec | None
    loader: Any
    if module:
        spec, path = _spec_of(module[0]), ""
        sys.argv = [str(spec.origin), *module[1:]]
    else:
        sys.argv, path = script, os.path.abspath(script[0])
        # That of a directory or an archive; none of a file.
        finder: Any = get_importer(path)
        spec = finder and finder.find_spec("__main__")
        if finder is not None and spec is None:
            raise ModuleNotFoundError(f"can't find '__main__' module in {script[0]!r}")
        sys.path[0] = path if finder is not None else os.path.dirname(os.path.realpath(path))
    # Unlike with runpy it stays the main module while threads go on after its last line.
    main: Any = ModuleType("__main__")
    sys.modules["__main__"] = main
    if spec is not None:
        loader = spec.loader
        code = loader.get_code(spec.name)
    elif path.endswith(".pyc"):
        loader = SourcelessFileLoader("__main__", path)
        code = loader.get_code("__main__")
    else:
        loader = SourceFileLoader("__main__", path)
        code = loader.source_to_code(loader.get_data(path), path)
    if code is None:
        raise ImportError(f"No code object available for {spec and spec.name}")
    main.__loader__, main.__spec__ = loader, spec
    main.__file__ = spec.origin if spec else path
    main.__package__, main.__cached__ = spec and spec.parent, spec and spec.cached
    exec(code, main.__dict__)
    return 0


def _spec_of(name: str) -> ModuleSpec:
    spec = find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name += ".__main__"
        spec = find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name}", name=name)
    return spec


def _say(line: str) -> None:
    print(f"ebbpool: {line}", file=sys.stderr, flush=True)


def _serve(*, refuse: Callable[[str], NoReturn], **options: Any) -> int:
    _check_pool(refuse, options)
    # Imported here, because it imports http.server and all that this needs.
    from ebbpool._cli.serve import serve

    return serve(Options(**options))


def _top(**options: Any) -> int:
    # Imported here, because it imports what talks to other processes.
    from ebbpool._top.run import run

    return run(**options)


def main() -> int:
    """Run the command line of this process; return the exit status."""
    arguments = vars(parser().parse_args())
    act: Callable[..., int] = arguments.pop("act")
    return act(**arguments)
