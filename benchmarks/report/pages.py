"""docs/performance.md, from the committed runs: a summary, and half a screen for each question."""

from __future__ import annotations

import re
from collections.abc import Mapping

from benchmarks import ROOT
from benchmarks.engine.model import asks
from benchmarks.engine.results import Answers, Run
from benchmarks.report.tables import contest_rows, lead, markdown, standing

MAIN = "bench"
EVIDENCE = ROOT / "docs" / "evidence"
PERFORMANCE = ROOT / "docs" / "performance.md"
_ROWS_AT_MOST = 6

_INTRO = """\
# Performance

This page is written by a script from the samples of one run, which are [committed with it](evidence/index.md).
`python -m benchmarks show docs/evidence/bench.json` prints all of its figures, `python -m nox -s bench` repeats it on
your machine in less than half an hour, and `-- compare OLD NEW` says what moved between two runs beyond the noise.

- A figure is the median over rounds; each round is a process of its own, and the peers take turns within a round.
- The best of ebbpool's ways stands beside the best of its rivals'. *Times better* is above 1 where ebbpool is ahead and
  below 1 where the rival is, whether the figure is a time or a rate. Who is ahead is said only where the 95%
  interval of that ratio leaves 1 out; all else is within the noise: how far the rounds of one cell are from each
  other, over all cells of the question, in logarithms.
- A *floor* is what a program does without a pool, or by hand without what a pool has to promise: nobody gets below it
  for free.
- One machine is one machine. Ratios carry over better than figures do.

[Five published experiments](experiments/index.md) that ebbpool stands on have a page each, with what was claimed then
and what holds now.
"""

_TOCTREE = """\
```{toctree}
:hidden:

experiments/index
evidence/index
```
"""

_OTHERS = {
    "floor": "Beside floors and an earlier commit",
    "floor-pinned": "Beside them, every process held to one processor",
    "free-threaded": "Without a GIL",
    "loop": "How long event loops wait, beside an earlier commit",
    "health": "The same through FastAPI",
    "loop-free-threaded": "The same without a GIL",
    "kill-child": "Children that are killed",
}


def _overview(run: Run) -> str:
    rows = [["question", "ebbpool ahead", "within the noise", "a rival ahead", "furthest behind"]]
    for answers in run.answers.values():
        ahead, level, behind = standing(answers)
        worst = f"{behind[0].ratio:.2f}, {behind[0].rival.label}" if behind else "-"
        counts = [str(ahead), str(level), str(len(behind))] if ahead + level + len(behind) else ["-"] * 3
        anchor = re.sub(r"[^\w\- ]", "", answers.question.title.lower()).replace(" ", "-")
        rows.append([f"[{answers.question.title}](#{anchor})", *counts, worst])
    return markdown(rows)


def _section(answers: Answers, level: int = 3) -> list[str]:
    question = answers.question
    lines = [f"{'#' * level} {question.title}", "", f"{asks(question.name)} {lead(answers)}", ""]
    contests = [contest for contest in answers.contests() if contest.column == _first(answers)]
    if contests:
        # Of many variants some, from the first to the last.
        step = max(1, (len(contests) - 1) / (_ROWS_AT_MOST - 1))
        chosen = [contests[round(at * step)] for at in range(min(len(contests), _ROWS_AT_MOST))]
        lines += [markdown(contest_rows(answers, chosen)), ""]
    facts = [("How", question.method), ("Floor", question.floor), ("What limits it", question.limits)]
    return [*lines, *(f"- **{name}**: {text}" for name, text in facts if text), ""]


def _first(answers: Answers) -> object:
    return next((contest.column for contest in answers.contests()), None)


def performance(runs: Mapping[str, Run]) -> str:
    """Return docs/performance.md."""
    main = runs[MAIN]
    minutes = round(main.document["seconds"]) // 60
    lines = [_INTRO, f"This run: {main.told()}, {minutes} minutes.", "", "## Who is ahead", "", _overview(main), ""]
    lines += ["## Question by question", ""]
    for answers in main.answers.values():
        lines += _section(answers)
    lines += ["## Other runs", ""]
    for name, run in runs.items():
        if name != MAIN:
            lines += [f"### {_OTHERS.get(name, name)}", "", f"{run.told()}.", ""]
            lines += [f"- {answers.question.title}: {lead(answers)}" for answers in run.answers.values()]
            lines.append("")
    return "\n".join([*lines, _TOCTREE]).rstrip() + "\n"


def committed() -> dict[str, Run]:
    """Return the runs in docs/evidence by name, the main one first; none before there is a main one."""
    paths = sorted(EVIDENCE.glob("*.json"), key=lambda path: (path.stem != MAIN, path.stem))
    return {path.stem: Run.read(path) for path in paths} if (EVIDENCE / f"{MAIN}.json").exists() else {}


def check(runs: Mapping[str, Run], write: bool) -> list[str]:
    """Return whether docs/performance.md differs from the runs; with `write` make it the same."""
    before = PERFORMANCE.read_text(encoding="utf-8") if PERFORMANCE.exists() else ""
    after = performance(runs)
    if before == after:
        return []
    if write:
        PERFORMANCE.write_text(after, encoding="utf-8")
        return []
    return ["docs/performance.md: not what the committed runs say; `python -m benchmarks figures --write`"]
