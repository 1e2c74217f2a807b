"""Asks the questions: `python -m benchmarks [question ...]` from the root of the repository.

Runs are looked at with `show RUN`, `publish RUN` and `figures --check`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import ROOT, processors
from benchmarks.engine import runner
from benchmarks.engine.model import QUESTIONS, Settings, load_question
from benchmarks.engine.results import UNFIT, read
from benchmarks.peers.table import PEERS
from benchmarks.report import marks, pages, tables
from ebbpool._interpreter import FREE_THREADED


def _names(text: str) -> tuple[str, ...]:
    unknown = sorted(set(text.split(",")) - {peer.name for peer in PEERS})
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}")
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
    """Return the question of this name, or the only one that begins so.

    Raises:
        argparse.ArgumentTypeError: There is none, or there are several.
    """
    named = [name for name in QUESTIONS if name == text] or [name for name in QUESTIONS if name.startswith(text)]
    if len(named) != 1:
        known = f"could be {', '.join(named)}" if named else f"known: {', '.join(QUESTIONS)}"
        raise argparse.ArgumentTypeError(f"no question {text!r}; {known}")
    return named[0]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="ebbpool beside its rivals; `show`, `publish` and `figures` look at runs",
    )
    which = f"some of {', '.join(QUESTIONS)}, or how only one of them begins; all if none"
    parser.add_argument("questions", nargs="*", type=question_named, metavar="question", help=which)
    parser.add_argument("--pin", action="store_true", help="hold every cell to one processor (Linux)")
    parser.add_argument("--quick", action="store_true", help="one round of small sizes: does everything run?")
    parser.add_argument("--rounds", type=int, default=3, help="rounds over all peers (3)")
    parser.add_argument(
        "--minutes", type=float, default=26, help="no round after the first begins that would end later (26)"
    )
    parser.add_argument("--peers", type=_names, default=(), help="the names of some peers, with commas")
    other = "another checkout, with its extensions built in place, whose ebbpool is asked the same in turn with this"
    parser.add_argument("--beside", metavar="FOLDER", type=_checkout, help=other)
    parser.add_argument("--workers", type=_counts, default=(1, 4, 32), help="the ceilings where several are asked for")
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "bench", help="folder for the JSON")
    return parser


def _measure(argv: Sequence[str]) -> int:
    parser = _parser()
    asked = parser.parse_args(argv)
    if asked.rounds < 1:
        parser.error(f"--rounds: at least 1, not {asked.rounds}")
    if sys.dont_write_bytecode and FREE_THREADED and not asked.quick:
        parser.error(f"cannot be run {UNFIT}; unset it")
    if asked.pin and not sys.platform.startswith("linux"):
        parser.error("--pin: not on this system")
    pin = processors()[-1] if asked.pin else None
    settings = Settings(asked.quick, asked.rounds, pin, asked.workers, asked.peers, asked.beside or "")
    questions = [load_question(name) for name in dict.fromkeys(asked.questions or QUESTIONS)]
    total = sum(len(runner.cells_of(each, settings)) * each.rounds(settings) for each in questions)
    load = runner.machine()["load_average"]
    if load is not None and load >= 0.5 * len(processors()):
        print(f"this machine is busy (load average {load:.1f}): the figures are noisy", file=sys.stderr)
    done = 0

    def announce(text: str) -> None:
        nonlocal done
        done += 1
        print(f"[{done}/{total}] {text}", file=sys.stderr, flush=True)

    name = f"{time.strftime('%Y%m%d-%H%M%S')}{'-pinned' if asked.pin else ''}"
    path = asked.out / f"{name}.json"
    for document in runner.run(questions, settings, announce, asked.minutes * 60):
        # After each round: what was measured is there however the run ends.
        runner.save(path, {name: document})
    run = read(path)[name]
    print(tables.show(run), f"samples: {path}", sep="\n\n")
    return 1 if any(answers.broken() for answers in run.answers.values()) else 0


def _look(argv: Sequence[str]) -> int:
    """Look at runs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    commands = parser.add_subparsers(dest="command", required=True)
    show = commands.add_parser("show", description="print all tables of the runs")
    show.add_argument("runs", type=Path, help="the JSON of one run or more")
    publish = commands.add_parser(
        "publish", description="copy a run to docs/evidence, and write the page on performance and the figures in docs"
    )
    publish.add_argument("run", type=Path, help="the JSON of a run")
    publish.add_argument(
        "--name", default=pages.MAIN, help=f"its name there ({pages.MAIN}: the run that figures are of)"
    )
    figures = commands.add_parser(
        "figures", description=marks.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    does = figures.add_mutually_exclusive_group(required=True)
    does.add_argument("--check", action="store_true", help="fail if README or docs differ from docs/evidence")
    does.add_argument("--write", action="store_true", help="make them the same")
    asked = parser.parse_args(argv)
    if asked.command == "show":
        print(*map(tables.show, read(asked.runs).values()), sep="\n\n")
        return 0
    if asked.command == "publish":
        (run,) = read(asked.run).values()
        if why := run.unfit():
            parser.error(why)
        pages.publish(run, asked.name)
    complaints = marks.check(asked.command == "publish" or asked.write)
    print(*complaints, sep="\n" if complaints else "", file=sys.stderr)
    return 1 if complaints else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit status: 1 if a cell failed, ran out of time or has wrong answers of ours, 0 otherwise."""
    argv = sys.argv[1:] if argv is None else argv
    return (_look if argv[:1] and argv[0] in ("show", "publish", "figures") else _measure)(argv)


if __name__ == "__main__":
    sys.exit(main())
