"""docs/performance.md and the pages behind it, from the committed runs: where rivals win stands first."""

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
[Other runs](performance/other-runs.md): beside [floors](design/floor.md) and earlier commits, with pinned processes,
and on Pythons without a GIL. A script writes these pages from [the samples of committed runs](evidence/index.md).

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
    "free-threaded": "Without a GIL",
    "gunicorn": "Worker classes of gunicorn",
    "health": "A FastAPI health check under load",
    "kill-child": "Killed children",
    "loop": "How long event loops wait, beside an earlier commit",
    "loop-free-threaded": "How long event loops wait without a GIL",
    "lost-worker": "Killed workers of a cluster",
    "overload": "Overload, beside an earlier commit",
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


def _section(answers: Answers) -> list[str]:
    question = answers.question
    lines = [f"## {question.title}", "", f"{question.asks} {lead(answers)}", ""]
    contests = answers.contests()
    if contests:
        contests = [contest for contest in contests if contest.column == contests[0].column]
        # Of many variants some, from the first to the last.
        step = max(1, (len(contests) - 1) / (_ROWS_AT_MOST - 1))
        chosen = [contests[round(at * step)] for at in range(min(len(contests), _ROWS_AT_MOST))]
        unit = f"{chosen[0].column.label}; {'more' if chosen[0].column.more else 'less'} is better"
        lines += [f"*{unit}.*", "", markdown(short_rows(chosen)), ""]
    facts = [("Measured", question.method), ("Floor", question.floor), ("Limited by", question.limits)]
    return [*lines, *(f"- **{name}**: {text}." for name, text in facts if text), ""]


def _asked_again(run: Run) -> str:
    names = ", ".join(map(_link, run.answers.values()))
    rounds = min(entry["rounds"] for entry in run.document["questions"].values())
    return f"Asked again in at least {rounds} round{'s' * (rounds > 1)} ({run.told()}): {names}"


def performance(runs: Mapping[str, Run]) -> dict[Path, str]:
    """Return docs/performance.md and the pages behind it, by path."""
    main = runs[MAIN]
    minutes = round(main.document["seconds"]) // 60
    lines = [_INTRO, _overview(main), "", f"This run: {main.told()}, {minutes} minutes."]
    lines += [f"{_asked_again(run)}." for name, run in runs.items() if name.startswith(AGAIN)]
    lines += ["", _TOCTREE.rstrip()]
    folder = PERFORMANCE.with_suffix("")
    questions = ["# Every question", ""]
    for answers in main.answers.values():
        questions += _section(answers)
    others = ["# Other runs", ""]
    for name, run in runs.items():
        if name != MAIN and not name.startswith(AGAIN):
            others += [f"## {_TITLES.get(name, name)}", "", f"{run.told()}.", ""]
            others += [f"- {answers.question.title}: {lead(answers)}" for answers in run.answers.values()]
            others.append("")
    return {
        PERFORMANCE: "\n".join(lines) + "\n",
        folder / "questions.md": "\n".join(questions).rstrip() + "\n",
        folder / "other-runs.md": "\n".join(others).rstrip() + "\n",
    }


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
    """Return which of these pages differ from the runs; with `write` make them the same."""
    wanted, folder = performance(runs), PERFORMANCE.with_suffix("")
    there = {path: path.read_text(encoding="utf-8") for path in (PERFORMANCE, *folder.glob("*.md")) if path.exists()}
    if not write:
        different = sorted(path for path in {*wanted, *there} if wanted.get(path) != there.get(path))
        how = "not what the committed runs say; `python -m benchmarks figures --write`"
        return [f"{path.relative_to(PERFORMANCE.parent.parent)}: {how}" for path in different]
    folder.mkdir(exist_ok=True)
    for path in there.keys() - wanted.keys():
        path.unlink()
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")
    return []
