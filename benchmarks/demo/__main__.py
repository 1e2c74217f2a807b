"""Entry point: ``python -m benchmarks.demo [--quick] [--out FOLDER]``."""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import sys
import time
from collections import deque
from collections.abc import Awaitable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import ebbpool
from benchmarks import ROOT
from benchmarks.demo.load import LOADS, Load, Sample, Side, play
from benchmarks.engine.model import turns_in
from benchmarks.load.http import BadResponse, Connection, request
from benchmarks.load.serving import Server, serving
from benchmarks.servers.fastapi import ready

T = TypeVar("T")
_NEEDED = ("fastapi", "matplotlib", "sqlalchemy", "uvicorn")
_EVERY, _SAY_EVERY, _START = 0.2, 4.0, time.monotonic()

SIDES = {
    "stock": "fastapi stock",
    "256 tokens": "fastapi stock --tokens 256",
    f"ebbpool {ebbpool.__version__.partition('+')[0]}": "fastapi installed",
}
"""What is compared, and the programs of `benchmarks.servers`; ours is the last."""


async def _say(what: str, work: Awaitable[T]) -> T:
    """Say what is being done, and again every few seconds until it is."""
    task, told = asyncio.ensure_future(work), what
    while not task.done():
        print(f"{time.monotonic() - _START:4.0f} s  {told}", flush=True)
        await asyncio.wait({task}, timeout=_SAY_EVERY)
        told = f"{what}, still"
    return task.result()


async def _watch(side: Side, server: Server, start: float) -> None:
    """Ask the server how it is, again and again."""
    client = await Connection.open(server.port)
    while True:
        facts = json.loads((await client.get(request("/facts")))[1])
        side.samples.append(Sample(time.monotonic() - start, len(facts["threads"]), facts["cpu"]))
        await asyncio.sleep(_EVERY)


async def run(loads: Sequence[Load], watch: float) -> tuple[list[Side], dict[str, float]]:
    """Have all servers bear each load in turn; return what came of it, and at which second each load began."""
    sides, starts, turns = [Side(name) for name in SIDES], dict[str, float](), str(turns_in(0.005))
    with (
        TemporaryDirectory() as folder,
        ExitStack() as stack,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as clients,
    ):
        options = [("--turns", turns, "--database", f"sqlite:///{folder}/{name}.db") for name in SIDES]
        starting = map(partial(serving, ready=ready), SIDES.values(), *zip(*options, strict=True))
        entering = asyncio.gather(*(asyncio.to_thread(stack.enter_context, server) for server in starting))
        order = deque(zip(sides, await _say("starting FastAPI three times", entering), strict=True))
        start = time.monotonic()
        watching = asyncio.gather(*(_watch(*each, start) for each in order))
        for load in loads:
            starts[load.name] = time.monotonic() - start
            for number in range(1, load.rounds + 1):
                if number > 1 and time.monotonic() - start > starts[load.name] + load.seconds:
                    break
                for side, server in order:
                    what = f"{load.name}, round {number} of {load.rounds}: {load.clients} clients, {side.name}"
                    work = asyncio.get_running_loop().run_in_executor(clients, play, server.port, load)
                    side.rounds[load.name].append(await _say(what, work))
                order.rotate()
        with suppress(TimeoutError):
            await _say(f"watching the threads for {watch:g} s without a request", asyncio.wait_for(watching, watch))
        for side, server in order:
            side.memory = server.status("VmHWM")
    return sides, starts


def demo(quick: bool, out: Path) -> int:
    """Run it and write the report; return the exit status: 0 only if all answers were right that had to be."""
    from benchmarks.demo import report

    loads = [replace(load, clients=20, rounds=1) for load in LOADS] if quick else LOADS
    watch = 0.5 if quick else 12.0
    sides, starts = asyncio.run(run(loads, watch))
    said = report.Report(loads, sides, starts, watch)
    problems = [text for side in sides for text in side.problems(loads, ours=side is sides[-1])]
    print("", said.text(), *problems, "", "Drawing the page.", sep="\n", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    page = out / "index.html"
    page.write_text(said.page(), encoding="utf-8")
    print(f"{time.monotonic() - _START:.0f} s in all. The report: {page.resolve().as_uri()}")
    return 1 if problems else 0


def main() -> int:
    """Read the command line, run the demo if everything it needs is installed, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description="Servers with and without ebbpool.")
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "demo", help="the report folder")
    parser.add_argument("--quick", action="store_true", help="a tiny load, to see that everything works")
    options = parser.parse_args()
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        print(f"The demo needs {', '.join(missing)}: install the group 'demo', or run `nox -s demo`.", file=sys.stderr)
        return 1
    try:
        return demo(options.quick, options.out)
    except (RuntimeError, OSError, BadResponse) as error:
        print(f"The demo failed: {error!r}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
