"""docs/performance.md from the committed runs: where rivals win stands first."""

from __future__ import annotations

import re
from collections.abc import Mapping

from benchmarks import ROOT
from benchmarks.engine.results import Answers, Run, read
from benchmarks.engine.runner import save
from benchmarks.report.tables import in_words, markdown, measured, short_rows

MAIN, AGAIN, OTHERS = "bench", "bench-again", "others"
"""The files in docs/evidence: the main run, those whose names begin so and whose answers stand in place of its (asked
later, in more rounds), and the rest."""
EVIDENCE = ROOT / "docs" / "evidence"
PERFORMANCE = ROOT / "docs" / "performance.md"
_ROWS_AT_MOST = 3

_INTRO = """\
# Performance

For each benchmark, this table shows the case where ebbpool compares worst; follow the link for the rest.

- *Times better* compares the best way to use ebbpool with the best rival: above 1 ebbpool is ahead, below 1 the rival,
  with the 95% interval in parentheses.
- **Bold** marks a lead that is statistically significant: the interval excludes 1. A row without an interval was
  measured in one round only, and no winner is named.
- Figures are medians over rounds. Each round runs in a fresh process, and the peers take turns.
- All figures come from one machine. Expect the ratios, not the times, to hold on yours: `python -m nox -s bench`
  repeats everything there in half an hour.
"""

_END = """\
[Where the figures come from](evidence/index.md) has every sample.

```{toctree}
:hidden:

performance/benchmarks
evidence/index
```
"""


def _link(answers: Answers) -> str:
    title = answers.question.title
    place = re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
    return f"[{title}](performance/benchmarks.md#{place})"


def _overview(run: Run) -> str:
    rows = []
    for answers in run.answers.values():
        if not (contests := answers.contests()):
            continue
        worst = min(
            contests, key=lambda contest: (contest.judged and contest.winner != contest.rival.label, contest.ratio)
        )
        order = (worst.winner != worst.rival.label, worst.judged, worst.ratio)
        _, *figures = short_rows([worst])[1]
        where = ", ".join(text for text in (in_words(worst.variant), measured(worst.column)) if text)
        rows.append((order, [_link(answers), where, *figures]))
    headers = ["benchmark", "worst case", "ebbpool", "best rival", "times better"]
    return markdown([headers, *(cells for _, cells in sorted(rows, key=lambda row: row[0]))])


def rows(answers: Answers) -> str:
    """Return the table of a question in docs/performance/benchmarks.md: of many variants some, by the first column."""
    if not (found := answers.contests()):
        return "There is no rival to compare with."
    contests = [contest for contest in found if contest.column == found[0].column]
    # From the first to the last.
    step = max(1, (len(contests) - 1) / (_ROWS_AT_MOST - 1))
    chosen = [contests[round(at * step)] for at in range(min(len(contests), _ROWS_AT_MOST))]
    column = chosen[0].column
    what = measured(column)
    better = "more" if column.more else "less"
    return f"*{what[:1].upper()}{what[1:]}; {better} is better.*\n\n{markdown(short_rows(chosen))}"


def performance(runs: Mapping[str, Run]) -> str:
    """Return docs/performance.md."""
    days = sorted(run.document["taken"].split()[0] for name, run in runs.items() if name.startswith(MAIN))
    when = " to ".join(dict.fromkeys((days[0], days[-1])))
    python, _, machine = runs[MAIN].told().partition(",")
    machine = machine.partition("),")[0].strip()
    return "\n".join([_INTRO, _overview(runs[MAIN]), "", f"Measured {when} with {python} on {machine}). {_END}"])


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
    """Return whether the page differs from the runs, and what has no section; with `write` make it the same."""
    complaints, questions = [], PERFORMANCE.with_suffix("") / "benchmarks.md"
    text = performance(runs)
    if write:
        questions.parent.mkdir(exist_ok=True)
        PERFORMANCE.write_text(text, encoding="utf-8")
    elif not PERFORMANCE.exists() or PERFORMANCE.read_text(encoding="utf-8") != text:
        complaints.append(
            f"{PERFORMANCE.name}: not what the committed runs say; `python -m benchmarks figures --write`"
        )
    sections = questions.read_text(encoding="utf-8") if questions.exists() else ""
    for answers in runs[MAIN].answers.values():
        if (section := f"## {answers.question.title}\n") not in sections:
            complaints.append(f"{questions.name}: no section {section.strip()!r}")
    return complaints
