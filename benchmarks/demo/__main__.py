"""Entry point: ``python -m benchmarks.demo [--quick] [--out FOLDER]``."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.demo.load import Load, Request, Run, Sample, plan, play
from benchmarks.load.http import Connection, request
from benchmarks.load.serving import Server, serving

_NEEDED = ("ebbpool", "fastapi", "uvicorn", "matplotlib")
_BUDGET = 120.0
"""Seconds after which the demo gives up."""
_EVERY = 0.05

SIDES = {
    "fastapi stock": "stock",
    "fastapi stock --tokens 256": "256 tokens",
    "fastapi installed": "ebbpool.anyio.install()",
}
"""The programs of `benchmarks.servers`, and what each stands for."""
LOAD = Load()
QUICK = Load(clients=60, rate=50.0, steady_at=0.3, steady=0.6, burst_size=30, trouble=(0.5, 0.8), watch=0.2)
"""A tiny one, to see that everything works."""


async def _facts(client: Connection) -> Any:
    """Ask a server how it is."""
    return json.loads((await client.get(request("/facts")))[1])


async def _watch(client: Connection, samples: list[Sample]) -> None:
    """Ask the server how it is, again and again, on the loop's clock."""
    loop = asyncio.get_running_loop()
    while True:
        facts = await _facts(client)
        samples.append(Sample(loop.time(), len(facts["threads"]), facts["cpu"]))
        await asyncio.sleep(_EVERY)


async def run_one(program: str, name: str, load: Load, requests: Sequence[Request], loaded: asyncio.Event) -> Run:
    """Serve the load in a fresh process, then watch until the server's threads have had time to leave."""
    with ExitStack() as stack:
        try:
            print(f"{name}: starting", flush=True)
            starting = asyncio.to_thread(stack.enter_context, serving(program))
            server: Server = await starting
            client, samples = await Connection.open(server.port), list[Sample]()
            watching = asyncio.create_task(_watch(client, samples))
            stack.callback(client.close)
            stack.callback(watching.cancel)
            print(f"{name}: under load", flush=True)
            start, outcomes = await play(server.port, list(requests), load.patience)
        finally:
            loaded.set()
        print(f"{name}: watching its threads", flush=True)
        await asyncio.wait({watching}, timeout=load.watch)
        if watching.done():
            raise RuntimeError(f"the server of {name} has gone away: {watching.exception()!r}")
        watching.cancel()
        await asyncio.wait({watching})
        asking = await Connection.open(server.port)
        facts = await _facts(asking)
        asking.close()
        seen = [Sample(each.at - start, each.threads, each.cpu) for each in samples]
        return Run(name, outcomes, seen, facts["threads"], server.status("VmHWM"), facts["loop"])


async def run(load: Load, together: bool) -> list[Run]:
    """Have every server bear the load.

    One starts as soon as the one before it is out of work and has only its idle threads to be watched; or all of them
    `together`, where no figure means anything.
    """
    requests, tasks = plan(load), list[asyncio.Task[Run]]()
    try:
        async with asyncio.TaskGroup() as group:
            for program, label in SIDES.items():
                loaded = asyncio.Event()
                tasks.append(group.create_task(run_one(program, label, load, requests, loaded)))
                if not together:
                    await loaded.wait()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def demo(quick: bool, out: Path) -> int:
    """Run it and write the report; return the exit status: 0 only if all answers were right."""
    from benchmarks.demo import report

    load = QUICK if quick else LOAD
    runs = asyncio.run(asyncio.wait_for(run(load, quick), _BUDGET))
    said, plot = report.told(runs, load)
    count = sum(len(one.outcomes) for one in runs)
    problems = [text for one in runs for text in one.wrong()]
    print("", said, *problems or [f"All {count:,} answers were right."], sep="\n")
    out.mkdir(parents=True, exist_ok=True)
    page = out / "index.html"
    page.write_text(report.page(said, plot), encoding="utf-8")
    print(f"The report: {page.resolve().as_uri()}")
    return 1 if problems else 0


def main() -> int:
    """Read the command line, run the demo if everything it needs is installed, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.demo", description="The same load on servers with and without ebbpool."
    )
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "demo", help="the report folder")
    parser.add_argument("--quick", action="store_true", help="a tiny load, to see that everything works")
    options = parser.parse_args()
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        print(f"The demo needs {', '.join(missing)}: install the group 'demo', or run `nox -s demo`.", file=sys.stderr)
        return 1
    try:
        return demo(options.quick, options.out)
    except TimeoutError:
        print(f"The demo gave up: it took longer than {_BUDGET:g} s.", file=sys.stderr)
    except RuntimeError as error:
        print(f"The demo failed: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
