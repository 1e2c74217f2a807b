"""docs/performance.md, from the committed runs: a summary, rivals that win first, and half a screen a question."""

from __future__ import annotations

import re
from collections.abc import Mapping

from benchmarks import ROOT
from benchmarks.engine.model import asks
from benchmarks.engine.results import Answers, Run
from benchmarks.report.tables import lead, markdown, short_rows, standing

MAIN = "bench"
EVIDENCE = ROOT / "docs" / "evidence"
PERFORMANCE = ROOT / "docs" / "performance.md"
_ROWS_AT_MOST = 4

_INTRO = """\
# Performance

What ebbpool and its rivals need for the same work, question by question. A script writes this page from
[the samples of committed runs](evidence/index.md).

- *Times better* compares the best of ebbpool's ways with the best rival: above 1 ebbpool is ahead, below 1 the rival.
  In parentheses is its 95% interval.
- **Bold** is whoever is ahead with all of that interval. Otherwise nobody is: the difference is within the noise. A
  question that was asked in one round shows no noise, and is not judged.
- A figure is the median over rounds. Each round is a process of its own, in which the peers take turns.
- It is one machine. Ratios carry over to yours better than times do: `python -m nox -s bench` repeats all of it there
  in half an hour, and `python -m benchmarks show docs/evidence/bench.json` prints every figure of this run.
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
    "floor-pinned": "The same, with each process held to one processor",
    "free-threaded": "Without a GIL",
    "health": "A FastAPI health check under load",
    "kill-child": "Killed children",
    "loop": "How long event loops wait, beside an earlier commit",
    "loop-free-threaded": "How long event loops wait without a GIL",
}


def _overview(run: Run) -> str:
    rows = []
    for answers in run.answers.values():
        found = standing(answers)
        counts = (len(found.behind), found.level, found.ahead, len(found.unjudged))
        if not any(counts):
            continue
        worst = next((contest for contest in (*found.behind, *found.unjudged[:1]) if contest.ratio < 1), None)
        told = f"{worst.ratio:.2f}, {worst.rival.label}" if worst else ""
        anchor = re.sub(r"[^\w\- ]", "", answers.question.title.lower()).replace(" ", "-")
        title = f"[{answers.question.title}](#{anchor})"
        order = (not found.behind, worst is None, worst.ratio if worst else -found.level)
        names = ("a rival in", "nobody in", "ebbpool in", "not judged:")
        who = ", ".join(f"{name} {count}" for name, count in zip(names, counts, strict=True) if count)
        rows.append((order, [title, who, told]))
    headers = ["question", "who is ahead", "ebbpool furthest behind"]
    return markdown([headers, *(cells for _, cells in sorted(rows, key=lambda row: row[0]))])


def _section(answers: Answers) -> list[str]:
    question = answers.question
    lines = [f"### {question.title}", "", f"{asks(question.name)} {lead(answers)}", ""]
    contests = [contest for contest in answers.contests() if contest.column == _first(answers)]
    if contests:
        # Of many variants some, from the first to the last.
        step = max(1, (len(contests) - 1) / (_ROWS_AT_MOST - 1))
        chosen = [contests[round(at * step)] for at in range(min(len(contests), _ROWS_AT_MOST))]
        unit = f"{chosen[0].column.label}; {'more' if chosen[0].column.more else 'less'} is better"
        lines += [f"*{unit}.*", "", markdown(short_rows(chosen)), ""]
    facts = [("Measured", question.method), ("Floor", question.floor), ("Limited by", question.limits)]
    told = [f"**{name}**: {text}." for name, text in facts if text]
    return [*lines, ":::{dropdown} How it was measured", " ".join(told), ":::", ""]


def _first(answers: Answers) -> object:
    return next((contest.column for contest in answers.contests()), None)


def performance(runs: Mapping[str, Run]) -> str:
    """Return docs/performance.md."""
    main = runs[MAIN]
    minutes = round(main.document["seconds"]) // 60
    lines = [_INTRO, f"This run: {main.told()}, {minutes} minutes.", "", "## Summary", "", _overview(main), ""]
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
