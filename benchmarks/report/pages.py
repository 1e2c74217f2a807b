"""docs/performance.md and the page on other runs, from the committed runs: where rivals win stands first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from benchmarks import ROOT
from benchmarks.engine.results import Answers, Run, read
from benchmarks.engine.runner import save
from benchmarks.report.tables import lead, markdown, short_rows

MAIN, AGAIN, OTHERS = "bench", "bench-again", "others"
"""The files in docs/evidence: the main run, those whose names begin so and whose answers stand in place of its (asked
later, in more rounds), and the rest."""
EVIDENCE = ROOT / "docs" / "evidence"
PERFORMANCE = ROOT / "docs" / "performance.md"
_ROWS_AT_MOST = 4

_INTRO = """\
# Performance

Each row has one question's comparison in which ebbpool does worst. The link leads to the others, and to how they were
measured.

- *Times better* compares the best of ebbpool's ways with the best rival: above 1 ebbpool is ahead, below 1 the rival.
  In parentheses is its 95% interval.
- **Bold** marks a lead beyond the noise: the whole interval is on one side of 1. A row without an interval was measured
  in one round only, and is not judged.
- Figures are medians over rounds, each in a process of its own in which the peers take turns.
- It is one machine. Ratios carry over to yours better than times do: `python -m nox -s bench` repeats all of it there
  in half an hour, and `python -m benchmarks show docs/evidence/bench.json` prints every figure of this run.
"""

_TOCTREE = """\
[Other runs](performance/other-runs.md): beside [floors](design/floor.md) and earlier commits, and with pinned
processes. A script writes these pages from [the samples of committed runs](evidence/index.md).

```{toctree}
:hidden:
:glob:

performance/*
experiments/index
evidence/index
```
"""

_TITLES = {
    "floor": "Beside floors and an earlier commit",
    "floor-pinned": "The same, with each process held to one processor",
    "gunicorn": "Worker classes of gunicorn",
    "health": "A FastAPI health check under load",
    "kill-child": "Killed children",
    "loop": "How long event loops wait, beside an earlier commit",
    "lost-worker": "Killed workers of a cluster",
    "overload": "Overload, beside an earlier commit",
    "sqlalchemy": "FastAPI with SQLAlchemy, beside an earlier commit",
    "round-trip-pinned": "One call and its result, with each process held to one processor",
}


def _link(answers: Answers) -> str:
    title = answers.question.title
    place = re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
    return f"[{title}](performance/questions.md#{place})"


def _overview(run: Run) -> str:
    rows, alone = [], []
    for answers in run.answers.values():
        link = _link(answers)
        if not (contests := answers.contests()):
            alone.append(link)
            continue
        worst = min(
            contests, key=lambda contest: (contest.judged and contest.winner != contest.rival.label, contest.ratio)
        )
        order = (worst.winner != worst.rival.label, worst.judged, worst.ratio)
        variant, *figures = short_rows([worst])[1]
        where = ", ".join(text for text in (variant.strip("-"), worst.column.label) if text)
        rows.append((order, [link, where, *figures]))
    headers = ["question", "variant, figure", "ebbpool", "best rival", "times better"]
    table = markdown([headers, *(cells for _, cells in sorted(rows, key=lambda row: row[0]))])
    return table + (f"\n\nWithout a rival: {', '.join(alone)}." if alone else "")


def rows(answers: Answers) -> str:
    """Return the table of a question in docs/performance/questions.md: of many variants some, by the first column."""
    if not (found := answers.contests()):
        return lead(answers)
    contests = [contest for contest in found if contest.column == found[0].column]
    # From the first to the last.
    step = max(1, (len(contests) - 1) / (_ROWS_AT_MOST - 1))
    chosen = [contests[round(at * step)] for at in range(min(len(contests), _ROWS_AT_MOST))]
    unit = f"{chosen[0].column.label}; {'more' if chosen[0].column.more else 'less'} is better"
    return f"*{unit}.*\n\n{markdown(short_rows(chosen))}"


def _asked_again(run: Run) -> str:
    names = ", ".join(map(_link, run.answers.values()))
    rounds = min(entry["rounds"] for entry in run.document["questions"].values())
    return f"Asked again in at least {rounds} round{'s' * (rounds > 1)} ({run.told()}): {names}"


def performance(runs: Mapping[str, Run]) -> dict[Path, str]:
    """Return docs/performance.md and the page on other runs, by path."""
    main = runs[MAIN]
    minutes = round(main.document["seconds"]) // 60
    lines = [_INTRO, _overview(main), "", f"This run: {main.told()}, {minutes} minutes."]
    lines += [f"{_asked_again(run)}." for name, run in runs.items() if name.startswith(AGAIN)]
    lines += ["", _TOCTREE.rstrip()]
    others = ["# Other runs", ""]
    for name, run in runs.items():
        if name != MAIN and not name.startswith(AGAIN):
            others += [f"## {_TITLES.get(name, name)}", "", f"{run.told()}.", ""]
            others += [f"- {answers.question.title}: {lead(answers)}" for answers in run.answers.values()]
            others.append("")
    other_runs = PERFORMANCE.with_suffix("") / "other-runs.md"
    return {PERFORMANCE: "\n".join(lines) + "\n", other_runs: "\n".join(others).rstrip() + "\n"}


def committed() -> dict[str, Run]:
    """Return the runs in docs/evidence by name, the main one first; none before there is a main one."""
    found = {name: run for path in EVIDENCE.glob("*.json") for name, run in read(path).items()}
    if MAIN not in found:
        return {}
    runs = {name: found[name] for name in sorted(found, key=lambda name: (name != MAIN, name))}
    for name, run in runs.items():
        if name.startswith(AGAIN):
            runs[MAIN].answers |= run.answers
    return runs


def publish(run: Run, name: str) -> None:
    """Put a run into docs/evidence under a name, in place of what has that name there."""
    path = EVIDENCE / f"{MAIN if name == MAIN else AGAIN if name.startswith(AGAIN) else OTHERS}.json"
    kept = {each.name: each.document for each in read(path).values()} if path.exists() else {}
    save(path, kept | {name: run.document})


def check(runs: Mapping[str, Run], write: bool) -> list[str]:
    """Return which of these pages differ from the runs, and what has no section; with `write` make them the same."""
    complaints, questions = [], PERFORMANCE.with_suffix("") / "questions.md"
    for path, text in performance(runs).items():
        if write:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            complaints.append(f"{path.name}: not what the committed runs say; `python -m benchmarks figures --write`")
    sections = questions.read_text(encoding="utf-8") if questions.exists() else ""
    for answers in runs[MAIN].answers.values():
        if (section := f"## {answers.question.title}\n") not in sections:
            complaints.append(f"{questions.name}: no section {section.strip()!r}")
    return complaints
