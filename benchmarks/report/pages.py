"""A run as docs/performance.md, with its pictures, and as one HTML file that needs nothing else."""

from __future__ import annotations

import html
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.engine.model import ROOT
from benchmarks.report import pictures
from benchmarks.report.report import Answers, Contest, Table, key, table, target_table
from benchmarks.report.store import Run, read

MAIN = "bench"
EVIDENCE = ROOT / "docs" / "evidence"
PERFORMANCE = ROOT / "docs" / "performance.md"
_NAMED_AT_MOST = 6
_HEADERS = ["variant", "figure", "ebbpool", "best rival", "times better", "ahead", "floor"]

_INTRO = """\
# Performance

This page is written by a script from the samples of one run, which are [committed with it](evidence/bench.json); so is
[the same as a single HTML file](evidence/bench.html). `python -m nox -s bench` repeats it all on your machine in less
than half an hour, `python -m nox -s bench -- --quick` tries every question in four minutes, and
`python -m nox -s bench -- compare OLD NEW` says what moved between two runs beyond the noise.

How to read it:

- Each figure is the median over rounds; each round is a process of its own, and the peers take turns within a round.
  The least and the most of the rounds stand in brackets.
- A comparison takes the best of ebbpool's ways and the best of its rivals'. *Times better* is above 1 where ebbpool is
  ahead and below 1 where the rival is, whether the figure is a time or a rate. Who is ahead is said only where the 95%
  interval of that ratio leaves 1 out; all else is within the noise. The noise is that of the question: how far the
  rounds of one cell are from each other, over all its cells, in logarithms (a pooled t-test).
- A *floor* is what a program does without a pool, or by hand without what a pool has to promise: nobody gets below it
  for free.
- One machine is one machine. Ratios carry over better than figures do.

[Five published experiments](experiments/index.md) that ebbpool stands on have a page each, with what was claimed then
and what holds now. [How a run becomes this page](evidence/index.md) is written down too.
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
    "pinned": "Every process held to one processor",
}


def question_text(answers: Answers) -> str:
    """Return what a question asks: the first line of its module."""
    text = importlib.import_module(answers.question.module).__doc__ or ""
    return text.strip().partition("\n")[0]


def _behind(contest: Contest) -> str:
    where = f"{key(contest.variant)}, {contest.column.label}"
    if contest.column.more:
        return f"**{contest.rival.label}** is ahead ({where}): ebbpool reaches {contest.ratio:.2f} of it"
    return f"**{contest.rival.label}** is ahead ({where}): ebbpool takes {1 / contest.ratio:.2f} times as much"


def standing(answers: Answers) -> tuple[int, int, list[Contest]]:
    """Return in how many contests ebbpool is ahead, in how many neither is, and those where a rival is."""
    contests = answers.contests()
    ahead = sum(contest.winner == contest.ours.label for contest in contests)
    behind = [contest for contest in contests if contest.winner == contest.rival.label]
    return ahead, len(contests) - ahead - len(behind), sorted(behind, key=lambda contest: contest.ratio)


def lead(answers: Answers) -> str:
    """Return who is ahead, in a sentence or several."""
    if answers.question.lead is not None:
        return answers.question.lead(answers)
    ahead, level, behind = standing(answers)
    total = ahead + level + len(behind)
    if not total:
        return "There is no rival to compare with."
    text = f"**ebbpool** is ahead in {ahead} of {total} comparisons"
    text += f", a rival in {len(behind)}" if behind else ", no rival in any"
    text += f"; {level} {'is' if level == 1 else 'are'} within the noise." if level else "."
    named = [_behind(contest) for contest in behind[:_NAMED_AT_MOST]]
    if len(behind) > _NAMED_AT_MOST:
        named.append(f"and {len(behind) - _NAMED_AT_MOST} more, in the table")
    text += f" {'; '.join(named)}." if named else ""
    if answers.plan.rounds == 1:
        text += " It was asked in one round, which tells nothing of the noise: who is ahead is by the figures alone."
    return text


def contest_rows(answers: Answers) -> list[list[str]]:
    """Return a row for each contest, under `_HEADERS`."""
    rows = []
    for contest in answers.contests():
        column = contest.column
        # In one line: with spaces that do not break.
        spread = "" if contest.low == contest.high else f" ({contest.low:.2f}\u00a0to\u00a0{contest.high:.2f})"
        floor = "-"
        if contest.floor is not None:
            floor = f"{contest.floor.figure.value:,.{column.digits}f}, {_bare(contest.floor.label)}"
        rows.append([
            key(contest.variant),
            column.label,
            f"{contest.ours.figure.value:,.{column.digits}f}, {_bare(contest.ours.label)}",
            f"{contest.rival.figure.value:,.{column.digits}f}, {_breakable(contest.rival.label)}",
            f"{contest.ratio:.2f}{spread}",
            f"**{'ebbpool' if contest.winner == contest.ours.label else _breakable(contest.winner)}**" if contest.winner
            else "within the noise",
            floor,
        ])  # fmt: skip
    return rows


def _breakable(label: str) -> str:
    """Let a long name go on in the next line before its arguments."""
    return re.sub(r"(?<=\w)\(", "\u200b(", label)


def _bare(label: str) -> str:
    return re.sub(r" \((compiled|floor|ceiling)\)$", "", label)


def _markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [list(headers), ["---"] * len(headers), *([*row, *[""] * (len(headers) - len(row))] for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _contests(answers: Answers) -> tuple[list[str], list[list[str]]]:
    """Return headers and rows of the contests, without a column for floors where there are none."""
    rows = contest_rows(answers)
    without = all(row[-1] == "-" for row in rows)
    return (_HEADERS[:-1], [row[:-1] for row in rows]) if without else (_HEADERS, rows)


def contest_table(answers: Answers) -> str:
    """Return the contests as a table in Markdown."""
    return _markdown(*_contests(answers))


def _facts(answers: Answers) -> Iterator[tuple[str, str]]:
    yield "How", answers.question.method
    if answers.question.floor:
        yield "Floor", answers.question.floor
    if answers.question.limits:
        yield "What limits it", answers.question.limits
    broken = {f"{found.peer} {key(found.variant)}: {found.reason.splitlines()[-1]}" for found in answers.broken}
    if broken:
        yield "Failed", "; ".join(sorted(broken))


def _section(answers: Answers, picture: str, level: int = 3) -> list[str]:
    lines = [f"{'#' * level} {answers.question.title}", "", f"Asked: {question_text(answers)}", "", lead(answers), ""]
    if answers.contests():
        lines += [contest_table(answers), ""]
    if picture:
        lines += [f"![{answers.question.drawn.label} of each peer, as in the table below]({picture})", ""]
    full = table(answers)
    lines += ["<details><summary>All figures</summary>", "", _markdown(full.headers, full.rows), "", "</details>", ""]
    lines += [f"- **{name}**: {text}" for name, text in _facts(answers)]
    return [*lines, ""]


def _overview(run: Run) -> list[str]:
    rows = []
    for answers in run.answers.values():
        ahead, level, behind = standing(answers)
        worst = f"{behind[0].ratio:.2f}, {behind[0].rival.label}" if behind else "-"
        counts = [str(ahead), str(level), str(len(behind))] if ahead + level + len(behind) else ["-"] * 3
        anchor = re.sub(r"[^\w\- ]", "", answers.question.title.lower()).replace(" ", "-")
        rows.append([f"[{answers.question.title}](#{anchor})", *counts, worst])
    headers = ["question", "ebbpool ahead", "within the noise", "a rival ahead", "furthest behind"]
    return [_markdown(headers, rows), ""]


def performance(runs: Mapping[str, Run]) -> str:
    """Return docs/performance.md."""
    main = runs[MAIN]
    lines = [_INTRO, f"This run: {main.told()}, {main.seconds // 60} minutes.", "", "## Who is ahead", ""]
    lines += [*_overview(main), "## Question by question", ""]
    for name, answers in main.answers.items():
        picture = f"evidence/{MAIN}/{name}.svg"
        lines += _section(answers, picture if (EVIDENCE / MAIN / f"{name}.svg").exists() else "")
    for name, run in runs.items():
        if name != MAIN:
            lines += [f"## {_OTHERS.get(name, name)}", "", f"{run.told()}. [Samples](evidence/{name}.json).", ""]
            for answers in run.answers.values():
                lines += [f"### {answers.question.title} ({_small(_OTHERS.get(name, name))})", "", lead(answers), ""]
                lines += [contest_table(answers), ""] if answers.contests() else []
    lines += ["## Peers", "", "What ran, and why what is missing did not:", ""]
    lines += [f"- {peer}: {_version(main, text)}" for peer, text in sorted(main.versions.items())]
    lines += ["", _TOCTREE]
    return "\n".join(lines).rstrip() + "\n"


def _small(title: str) -> str:
    return title[0].lower() + title[1:]


def _version(run: Run, text: str) -> str:
    # A checkout without tags has this one.
    return f"commit {run.commit}" if text == "0.0" and run.commit else text.splitlines()[0]


def committed() -> dict[str, Run]:
    """Return the runs in docs/evidence by name, the main one first; none before there is a main one."""
    paths = sorted(EVIDENCE.glob("*.json"), key=lambda path: (path.stem != MAIN, path.stem))
    return {path.stem: read(path) for path in paths} if (EVIDENCE / f"{MAIN}.json").exists() else {}


def check(runs: Mapping[str, Run], write: bool) -> list[str]:
    """Return in which lines docs/performance.md differs from the runs; with `write` make it the same."""
    before = PERFORMANCE.read_text(encoding="utf-8") if PERFORMANCE.exists() else ""
    after = performance(runs)
    if before == after:
        return []
    if write:
        PERFORMANCE.write_text(after, encoding="utf-8")
        return []
    pairs = enumerate(zip((before + "\n" * len(after)).split("\n"), after.split("\n"), strict=False), 1)
    line = next((number for number, (old, new) in pairs if old != new), 1)
    return [f"docs/performance.md:{line}: not what the committed runs say; `python -m benchmarks figures --write`"]


def draw(run: Run) -> dict[str, str]:
    """Return the picture of each question that has one, as text of an SVG element; none without matplotlib."""
    try:
        importlib.import_module("matplotlib")
    except ImportError:
        return {}
    return {name: text for name, answers in run.answers.items() if (text := pictures.drawn(answers))}


def publish(run: Run, drawings: Mapping[str, str]) -> list[Path]:
    """Write the pictures of a run beside its JSON in docs/evidence, and its HTML report; return what was written."""
    folder = EVIDENCE / run.name
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.svg"):
        old.unlink()
    written = []
    for name, text in drawings.items():
        path = folder / f"{name}.svg"
        path.write_text(text, encoding="utf-8")
        written.append(path)
    page = EVIDENCE / f"{run.name}.html"
    page.write_text(report(run, drawings), encoding="utf-8")
    return [*written, page]


_STYLE = """
:root { color-scheme: light dark; --ground: #fff; --text: #1b1f24; --soft: #59636e; --line: #d1d9e0; --band: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #101418; --text: #e3e7eb; --soft: #9aa5b1; --line: #333c46; --band: #181e24; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem 1.2rem 4rem; max-width: 62rem; background: var(--ground); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif; }
h1, h2 { line-height: 1.2; }
h2 { margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line); }
a { color: #0072b2; } @media (prefers-color-scheme: dark) { a { color: #56b4e9; } }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; margin: .8rem 0; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { background: var(--band); }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
svg { max-width: 100%; height: auto; }
summary { cursor: pointer; color: var(--soft); }
dt { font-weight: 600; } dd { margin: 0 0 .6rem; color: var(--soft); }
.soft { color: var(--soft); }
"""


def _inline(text: str) -> str:
    return re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", html.escape(text))


def _html_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def cell(text: str) -> str:
        number = ' class="number"' if re.match(r"^-?[0-9][0-9.,]*( \(|$)", text) else ""
        return f"<td{number}>{_inline(text)}</td>"

    def line(row: Sequence[str]) -> str:
        if len(row) < len(headers):
            *cells, remark = row
            span = f'<td colspan="{len(headers) - len(cells)}">{_inline(remark)}</td>'
            return f"<tr>{''.join(map(cell, cells))}{span}</tr>"
        return f"<tr>{''.join(map(cell, row))}</tr>"

    head = "".join(f"<th>{html.escape(header)}</th>" for header in headers)
    body = "\n".join(map(line, rows))
    return f'<div class="scroll" tabindex="0"><table><tr>{head}</tr>\n{body}</table></div>'


def _html_section(name: str, answers: Answers, drawing: str) -> str:
    full: Table = table(answers)
    headers, rows = _contests(answers)
    facts = "".join(f"<dt>{title}</dt><dd>{html.escape(text)}</dd>" for title, text in _facts(answers))
    label = html.escape(f"{answers.question.title}: {answers.question.drawn.label}", quote=True)
    picture = drawing.replace(pictures.INK, "currentColor").replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    return "\n".join([
        f'<h2 id="{name}">{html.escape(answers.question.title)}</h2>',
        f"<p>{html.escape(question_text(answers))}</p>",
        f"<p>{_inline(lead(answers))}</p>",
        _html_table(headers, rows) if rows else "",
        f"<figure>{_own_ids(name, picture)}</figure>" if picture else "",
        f"<details><summary>All figures</summary>{_html_table(full.headers, full.rows)}</details>",
        f"<dl>{facts}</dl>",
    ])  # fmt: skip


def _own_ids(name: str, picture: str) -> str:
    """Make the ids of one picture differ from those of the others on the page."""
    for attribute in ('id="', 'href="#', "url(#"):
        picture = picture.replace(attribute, f"{attribute}{name}-")
    return picture


def report(run: Run, drawings: Mapping[str, str]) -> str:
    """Return the whole run as one HTML page, light or dark as the reader's system is."""
    links = " · ".join(f'<a href="#{name}">{html.escape(name)}</a>' for name in run.answers)
    sections = [_html_section(name, answers, drawings.get(name, "")) for name, answers in run.answers.items()]
    verdicts = target_table(
        [verdict for answers in run.answers.values() for verdict in answers.verdicts()], run.settings.quick
    )
    peers = [[peer, _version(run, text)] for peer, text in sorted(run.versions.items())]
    targets = f'<h2 id="targets">Targets</h2>{_html_table(verdicts.headers, verdicts.rows)}' if verdicts.rows else ""
    without = "" if drawings else "<p>There are no pictures: matplotlib is not installed.</p>"
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,"><title>ebbpool beside its rivals</title><style>{_STYLE}</style></head><body><main>
<h1>ebbpool beside its rivals</h1>
<p>{html.escape(run.told())}.</p>
<p class="soft">Each figure is the median over rounds, each a process of its own; in brackets the least and the most of
the rounds. <em>Times better</em> is above 1 where ebbpool is ahead and below 1 where the rival is; in brackets its 95%
interval. Blue is ebbpool, light blue its plain core, grey a rival, orange a floor or a ceiling.</p>
{without}<nav>{links}</nav>
{"".join(sections)}
{targets}
<h2 id="peers">Peers</h2>
{_html_table(["peer", "version, or why it is missing"], peers)}
</main></body></html>
"""
