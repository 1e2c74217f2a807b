"""Asks the questions: `python -m benchmarks [question ...]` from the root of the repository.

What was measured is looked at with `report RUN`, `compare OLD NEW`, `publish RUN` and `figures`, each of which has its
own `--help`.
"""

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
from benchmarks.report import compare, figures, pages, report, store


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


def _checkout(text: str) -> str:
    if not (Path(text) / "src" / "ebbpool").is_dir():
        raise argparse.ArgumentTypeError(f"no checkout of ebbpool: {text}")
    return text


def question_named(text: str) -> str:
    """Return the module of the question whose name this is, or the only one that begins so.

    Raises:
        argparse.ArgumentTypeError: There is none, or there are several.
    """
    if "." in text:
        return text
    named = [name for name in QUESTIONS if name == text] or [name for name in QUESTIONS if name.startswith(text)]
    if len(named) != 1:
        known = f"could be {', '.join(named)}" if named else f"known: {', '.join(QUESTIONS)}"
        raise argparse.ArgumentTypeError(f"no question {text!r}; {known}")
    return f"benchmarks.{named[0]}"


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="ebbpool beside its rivals")
    parser.add_argument(
        "modules", nargs="*", type=question_named, metavar="question",
        help=f"some of {', '.join(QUESTIONS)}, or how only one of them begins; all if none",
    )  # fmt: skip
    parser.add_argument("--pin", action="store_true", help="hold every cell to one processor (Linux)")
    parser.add_argument("--quick", action="store_true", help="one round of small sizes: does everything run?")
    parser.add_argument("--rounds", type=int, default=3, help="rounds over all peers (3)")
    parser.add_argument(
        "--minutes", type=float, default=26, help="no round after the first begins that would end later (26)"
    )
    parser.add_argument("--peers", type=_names, default=(), help=f"some of {','.join(BY_NAME)}")
    parser.add_argument(
        "--beside", default="", metavar="FOLDER", type=_checkout,
        help="another checkout, with its extensions built in place, whose ebbpool is asked the same in turn with this",
    )  # fmt: skip
    parser.add_argument("--workers", type=_counts, default=(1, 4, 32), help="thread ceilings of submit_collect")
    parser.add_argument(
        "--loads", nargs="+", choices=LOADS, default=(), metavar="LOAD",
        help=f"loads of sizing: some of {', '.join(LOADS)}; those with FastAPI only if named",
    )  # fmt: skip
    parser.add_argument("--timeout", type=float, default=TIMEOUT_SECONDS, help="seconds a cell may take (120)")
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "bench", help="folder for the JSON and the HTML")
    asked = parser.parse_args(argv)
    asked.modules = list(dict.fromkeys(asked.modules)) or [f"benchmarks.{name}" for name in QUESTIONS]
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


def _looking_back(argv: Sequence[str]) -> int | None:
    """Do what is no measuring; None if measuring is asked for."""
    does = {"report": _report, "compare": _compare, "publish": _publish, "figures": _figures}
    return does[argv[0]](argv[1:]) if argv and argv[0] in does else None


def _report(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks report", description="draw a run anew, as HTML beside it"
    )
    parser.add_argument("run", type=Path, help="the JSON of a run")
    asked = parser.parse_args(argv)
    print(_drawn(asked.run))
    return 0


def _drawn(path: Path) -> Path:
    run = store.read(path)
    page = path.with_suffix(".html")
    page.write_text(pages.report(run, pages.draw(run)), encoding="utf-8")
    return page


def _compare(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks compare", description="what moved between two runs beyond the noise"
    )
    parser.add_argument("old", type=Path, help="the JSON of a run")
    parser.add_argument("new", type=Path, help="the JSON of a later one")
    asked = parser.parse_args(argv)
    print(*compare.told(store.read(asked.old), store.read(asked.new)), sep="\n")
    return 0


def _publish(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks publish",
        description="copy a run to docs/evidence, with its pictures and its HTML, and write docs/performance.md",
    )
    parser.add_argument("run", type=Path, help="the JSON of a run")
    parser.add_argument(
        "--name", default=pages.MAIN, help=f"its name there ({pages.MAIN}: the run that figures are of)"
    )
    asked = parser.parse_args(argv)
    kept = pages.EVIDENCE / f"{asked.name}.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    if kept.resolve() != asked.run.resolve():
        kept.write_bytes(asked.run.read_bytes())
    run = store.read(kept)
    print(kept, *pages.publish(run, pages.draw(run)), sep="\n")
    return _figures(["--write"])


def _figures(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks figures", description=figures.__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    does = parser.add_mutually_exclusive_group(required=True)
    does.add_argument("--check", action="store_true", help="fail if README or docs differ from docs/evidence")
    does.add_argument("--write", action="store_true", help="make them the same")
    asked = parser.parse_args(argv)
    complaints = figures.check(asked.write)
    print(*complaints, sep="\n" if complaints else "", file=sys.stderr)
    return 1 if complaints else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 1 if a cell failed or ran out of time, 0 otherwise, targets held or not."""
    looked = _looking_back(sys.argv[1:] if argv is None else argv)
    return _measured(arguments(argv)) if looked is None else looked


def _measured(asked: argparse.Namespace) -> int:
    settings = Settings(
        quick=asked.quick,
        rounds=asked.rounds,
        pin=processors()[-1] if asked.pin and pinning_available() else None,
        workers=asked.workers,
        peers=asked.peers,
        loads=tuple(asked.loads),
        beside=asked.beside,
    )
    facts, pin = store.machine(asked.beside), store.pinned(settings, asked.pin)
    gil = "with" if facts["gil"] else "without"
    print(f"Python {facts['python']}, {gil} a GIL, {facts['cpu_count']} processors")
    print(f"pinned: {pin}; {GC_POLICY}")
    if warning := store.busy():
        print(warning)
    print()
    plans = [Plan.of(load_question(module), settings) for module in asked.modules]
    path = asked.out / f"{time.strftime('%Y%m%d-%H%M%S')}{'-pinned' if settings.pin is not None else ''}.json"
    kept: dict[str, report.Answers] = {}
    with progress(sum(len(plan.cells) * plan.rounds for plan in plans)) as announce:
        for plan, outcomes in run(plans, settings, announce, asked.timeout, asked.minutes * 60):
            kept[plan.question.name] = report.Answers(plan, settings, outcomes)
            # After each round: what was measured is there however the run ends.
            store.save(path, store.document(facts, settings, list(kept.values()), pin))
    answers = list(kept.values())
    for found in answers:
        report.show(report.table(found))
    verdicts = [verdict for found in answers for verdict in found.verdicts()]
    if verdicts:
        report.show(report.target_table(verdicts, settings.quick))
    print(f"core: {store.core(answers)}; samples: {path}; report: {_drawn(path)}")
    broken = [outcome for found in answers for outcome in found.broken]
    if broken:
        print(f"{len(broken)} cells failed or ran out of time", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
