"""Entry point: ``python -m benchmarks.demo [--quick] [--out FOLDER]``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import html
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable
from importlib.util import find_spec
from pathlib import Path

from benchmarks import ROOT

_NEEDED = ("ebbpool", "starlette", "uvicorn", "rich", "matplotlib")
_BUDGET = 180.0
"""Seconds after which the demo gives up."""


async def _within(deadline: float, work: Awaitable[bool]) -> bool:
    """Do the work, but no longer than the monotonic clock's ``deadline``, and only until SIGTERM comes."""
    task = asyncio.current_task()
    assert task is not None
    # Event loops on Windows take no signal handlers; there nobody sends SIGTERM either.
    with contextlib.suppress(NotImplementedError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with asyncio.timeout(deadline - time.monotonic()):
        return await work


def write_index(out: Path) -> Path:
    """Write the page that shows every case in a report folder; return its path."""
    import ebbpool

    core = "compiled" if ebbpool.COMPILED else "plain"
    heading = f"The same load with and without ebbpool {ebbpool.__version__} ({core} core)"
    parts = [f"<h1>{html.escape(heading)}</h1>"]
    for told in sorted(out.glob("*.txt"), reverse=True):
        name, text = told.stem, html.escape(told.read_text(encoding="utf-8"))
        parts.append(
            f'<h2>{name}</h2><img src="{name}.svg" alt="Unanswered requests and threads over time" width="100%">'
            f'<pre>{text}</pre><p><a href="{name}.json">Every request and sample</a></p>'
        )
    style = "body { font: 16px sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em } pre { overflow-x: auto }"
    page = out / "index.html"
    page.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(heading)}</title>'
        f"<style>{style}</style>{''.join(parts)}</html>\n",
        encoding="utf-8",
    )
    return page


def demo(quick: bool, out: Path) -> int:
    """Run every case and write the report folder; return the exit status: 0 only if all answers were right."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from benchmarks.demo import case

    console, deadline, status = Console(), time.monotonic() + _BUDGET, 0
    out.mkdir(parents=True, exist_ok=True)
    for name, module in (("fastapi", "fastapi"), ("asyncio", "starlette")):
        if find_spec(module) is None:
            console.print(f"{module} is not installed here: the {name} case is left out.", style="bold yellow")
            continue
        for old in out.glob(f"{name}.*"):
            old.unlink()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        try:
            with Progress(*columns, console=console, refresh_per_second=4) as bars:
                right = asyncio.run(_within(deadline, case.run(name, quick, out / name, bars, console)))
            status = status if right else 1
        except RuntimeError as error:
            console.print(f"The {name} case failed: {error}", style="bold red", highlight=False, markup=False)
            status = 1
    if any(out.glob("*.txt")):
        address = write_index(out).resolve().as_uri()
        console.print(f"The report: {address}", highlight=False, markup=False, soft_wrap=True)
    return status


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
    with tempfile.TemporaryDirectory(prefix="ebbpool-demo-") as folder:
        # matplotlib keeps its font cache there, and nothing in the user's home.
        os.environ.setdefault("MPLCONFIGDIR", folder)
        try:
            return demo(options.quick, options.out)
        except TimeoutError:
            said, status = f"The demo gave up: it took longer than {_BUDGET:g} s.", 1
        except KeyboardInterrupt:
            said, status = "Interrupted.", 130
        except asyncio.CancelledError:
            said, status = "Terminated.", 143
    print(said, file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
