"""The whole demo: FastAPI first, then asyncio; a report folder."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import platform
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from . import asyncio_case, corpus
from .control import ROOT, ChildFailed
from .progress import make_bars
from .run import Site
from .table import Report, save_table, show

BUDGET = 180.0
"""Seconds after which the demo gives up."""
Case = Callable[[Site, bool, Path, dict[str, Any], Progress], Awaitable[Report]]


def cases(console: Console) -> dict[str, Case]:
    """Return the cases that can be run here, by name, the most telling first; say which one cannot."""
    found: dict[str, Case] = {}
    if find_spec("fastapi") is None:
        console.print("FastAPI is not installed here: its case is left out.", style="bold yellow", highlight=False)
    else:
        from . import fastapi_case

        found["fastapi"] = fastapi_case.measure_case
    found["asyncio"] = asyncio_case.measure_case
    return found


async def _within(deadline: float, work: Awaitable[Report]) -> Report:
    """Do the work, but no longer than the monotonic clock's ``deadline``, and only until SIGTERM comes."""
    task = asyncio.current_task()
    assert task is not None
    # Event loops on Windows take no signal handlers; there nobody sends SIGTERM either.
    with contextlib.suppress(NotImplementedError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with asyncio.timeout(deadline - time.monotonic()):
        return await work


def cluster_case(console: Console) -> dict[str, Case]:
    """Return the cluster case, if it can be run here; say if it cannot."""
    if find_spec("distributed") is None:
        console.print("distributed is not installed here: --cluster needs it.", style="bold yellow", highlight=False)
        return {}
    from .cluster_case import measure_case

    return {"cluster": measure_case}


def demo(quick: bool, out: Path, console: Console, cluster: bool = False) -> int:
    """Run every case and write the report folder; return the exit status: 0 only if all answers were right."""
    deadline = time.monotonic() + BUDGET
    facts = {"python": platform.python_version(), "platform": platform.platform(), "processors": os.cpu_count()}
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ebbpool-demo-") as folder:
        # matplotlib keeps its font cache there, and nothing in the user's home.
        os.environ.setdefault("MPLCONFIGDIR", folder)
        chosen = cluster_case(console) if cluster else cases(console)
        status = 0 if chosen else 1
        for name, case in chosen.items():
            for old in out.glob(f"{name}.*"):
                old.unlink()
            site = Site(Path(folder) / name, corpus.stdlib_root())
            site.folder.mkdir()
            try:
                with make_bars(console) as bars:
                    report = asyncio.run(_within(deadline, case(site, quick, out / name, facts, bars)))
            except (ChildFailed, corpus.NoFullTextSearch) as error:
                said = f"The {name} case failed: {error}"
                console.print(said, style="bold red", highlight=False, markup=False)
                status = 1
            else:
                save_table(report, out / f"{name}.txt")
                show(report, console)
                status = 1 if report.problems else status
    console.print(f"Tables, plots and JSON are in {out}", highlight=False, markup=False)
    return status


def main() -> int:
    """Read the command line, run the demo, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.demo", description="The same load on servers with and without ebbpool."
    )
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "demo", help="the report folder")
    parser.add_argument("--quick", action="store_true", help="a tiny load, to see that everything works")
    parser.add_argument("--cluster", action="store_true", help="a server that spills to a Dask cluster, in their place")
    options = parser.parse_args()
    console = Console()
    try:
        return demo(options.quick, options.out, console, options.cluster)
    except TimeoutError:
        said, status = f"The demo gave up: it took longer than {BUDGET:g} s.", 1
    except KeyboardInterrupt:
        said, status = "Interrupted.", 130
    except asyncio.CancelledError:
        said, status = "Terminated.", 143
    console.print(said, style="bold red", highlight=False, markup=False)
    return status
