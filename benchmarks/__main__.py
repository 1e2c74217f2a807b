"""Asks the questions: `python -m benchmarks [question ...]` from the root of the repository."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.engine.model import GC_POLICY, QUESTIONS, ROOT, Settings, load_question
from benchmarks.engine.runner import TIMEOUT_SECONDS, Plan, pinning_available, processors, run
from benchmarks.load.sizing import LOADS
from benchmarks.peers.table import BY_NAME
from benchmarks.report import plot, report

_BESIDE = Path()


def _names(text: str) -> tuple[str, ...]:
    unknown = sorted(set(text.split(",")) - set(BY_NAME))
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(BY_NAME)}")
    return tuple(text.split(","))


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(int(part) for part in text.split(","))
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"at least 1 each: {text}")
    return counts


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="ebbpool beside its rivals")
    parser.add_argument("questions", nargs="*", metavar="question", help=f"some of {', '.join(QUESTIONS)}; all if none")
    parser.add_argument("--pin", action="store_true", help="hold every cell to one processor (Linux)")
    parser.add_argument("--quick", action="store_true", help="one round of small sizes: does everything run?")
    parser.add_argument("--rounds", type=int, default=3, help="rounds over all peers (3)")
    parser.add_argument("--peers", type=_names, default=(), help=f"some of {','.join(BY_NAME)}")
    parser.add_argument("--workers", type=_counts, default=(1, 4, 32), help="thread ceilings of submit_collect")
    parser.add_argument(
        "--loads", nargs="+", choices=LOADS, default=(), metavar="LOAD",
        help=f"loads of sizing: some of {', '.join(LOADS)}; those with FastAPI only if named",
    )  # fmt: skip
    parser.add_argument("--timeout", type=float, default=TIMEOUT_SECONDS, help="seconds a cell may take (120)")
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "bench", help="folder for the JSON")
    parser.add_argument(
        "--plot", nargs="?", type=Path, const=_BESIDE, metavar="PATH",
        help="charts beside the JSON, or that of a single question at PATH, .svg or .png (needs matplotlib)",
    )  # fmt: skip
    asked = parser.parse_args(argv)
    modules = [name if "." in name else f"benchmarks.{name}" for name in asked.questions or QUESTIONS]
    asked.modules = modules
    for module in modules:
        if module.startswith("benchmarks.") and module.partition(".")[2] not in QUESTIONS:
            parser.error(f"unknown question {module.partition('.')[2]}; known: {', '.join(QUESTIONS)}")
    if asked.plot not in (None, _BESIDE):
        if asked.plot.suffix not in (".svg", ".png"):
            parser.error(f"--plot: a picture's name ends in .svg or .png, not {asked.plot}")
        if len(modules) > 1:
            parser.error(f"--plot: {asked.plot} has room for one question, not {len(modules)}")
    if asked.rounds < 1:
        parser.error(f"--rounds: at least 1, not {asked.rounds}")
    return asked


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """Yields what announces the next cell: a bar with rich on a terminal, a line to stderr otherwise."""
    try:
        console = importlib.import_module("rich.console").Console(stderr=True)
        bars = importlib.import_module("rich.progress")
    except ImportError:
        console = None
    if console is not None and console.is_terminal:
        columns = (bars.BarColumn(), bars.MofNCompleteColumn(), bars.TimeElapsedColumn())
        with bars.Progress(*columns, bars.TextColumn("{task.description}"), console=console) as bar:
            task = bar.add_task("", total=total + 1)
            yield lambda text: bar.update(task, advance=1, description=text)
        return
    done = 0

    def announce(text: str) -> None:
        nonlocal done
        done += 1
        print(f"[{done}/{total}] {text}", file=sys.stderr, flush=True)

    yield announce


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 1 if a cell failed or ran out of time, 0 otherwise, targets held or not."""
    asked = arguments(argv)
    settings = Settings(
        quick=asked.quick,
        rounds=asked.rounds,
        pin=processors()[-1] if asked.pin and pinning_available() else None,
        workers=asked.workers,
        peers=asked.peers,
        loads=tuple(asked.loads),
    )
    facts, pin = report.machine(), report.pinned(settings, asked.pin)
    gil = "with" if facts["gil"] else "without"
    print(f"Python {facts['python']}, {gil} a GIL, {facts['cpu_count']} processors")
    print(f"pinned: {pin}; {GC_POLICY}")
    if warning := report.busy():
        print(warning)
    print()
    plans = [Plan.of(load_question(module), settings) for module in asked.modules]
    answers = []
    name = time.strftime("%Y%m%d-%H%M%S") + ("-pinned" if settings.pin is not None else "")
    with progress(sum(len(plan.cells) * plan.rounds for plan in plans)) as announce:
        for plan in plans:
            found = report.Answers(plan, settings, list(run(plan, settings, announce, asked.timeout)))
            answers.append(found)
            tables = [report.table(found) for found in answers]
            report.show(tables[-1])
            verdicts = [verdict for found in answers for verdict in found.verdicts()]
            if verdicts:
                tables.append(report.target_table(verdicts, settings.quick))
            path = report.save(asked.out, name, report.document(facts, settings, answers, pin), tables)
    if verdicts:
        report.show(tables[-1])
    print(f"core: {report.core(answers)}; raw samples: {path}")
    if asked.plot is not None:
        print(*plot.draw_all(path, target=None if asked.plot == _BESIDE else asked.plot), sep="\n")
    broken = [outcome for found in answers for outcome in found.broken]
    if broken:
        print(f"{len(broken)} cells failed or ran out of time", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
