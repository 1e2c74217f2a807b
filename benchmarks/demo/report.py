"""What came of it: pictures, a sentence for each, and a table, in one page; a rival that is ahead is named."""

from __future__ import annotations

import base64
import html
import io
import math
import operator
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, NamedTuple

from matplotlib.figure import Figure

import ebbpool
from benchmarks.demo.load import Load, Round, Side
from benchmarks.engine.model import percentile
from benchmarks.report.tables import aligned

# Okabe and Ito's colours: told apart with every kind of colour vision. Of lines that coincide each shows.
_LINES = (("#D55E00", 5.0), ("#888888", 3.0), ("#0072B2", 1.5))
_STYLE = """
body { font: 16px/1.5 sans-serif; max-width: 64em; margin: auto; padding: 0 1em 2em; color: #222; background: #fff }
h1, h2 { line-height: 1.2; overflow-wrap: anywhere } p { margin: .5em 0 } img { width: 100% }
section { display: grid; gap: 0 2em; grid-template-columns: repeat(auto-fill, minmax(min(22em, 100%), 1fr)) }
figure { margin: 0 } i { padding: 0 .5em; margin: 0 .4em } table { border-collapse: collapse; width: 100% }
td { padding: .3em; border-top: thin solid; text-align: right; font-size: 90% } td:first-child { text-align: left }
"""


def in_words(seconds: float) -> str:
    """Return a time in three digits at most; "never" if it is infinite."""
    if math.isinf(seconds):
        return "never"
    return f"{seconds:.3g}\u00a0s" if seconds >= 1 else f"{seconds * 1000:.{1 if seconds < 0.0995 else 0}f}\u00a0ms"


def _share(load: Load, share: float) -> Callable[[Round], float]:
    """Return what tells when that share of the clients had a right answer."""
    wanted = math.ceil(share * load.clients)
    return lambda found: found.answers[wanted - 1] if len(found.answers) >= wanted else math.inf


def _check(share: float) -> Callable[[Round], float]:
    """Return what tells within how many seconds that share of the health checks was answered."""
    return lambda found: percentile([latency for _, latency in found.checks], share)


class Row(NamedTuple):
    """A question, and each server's answers to it, round by round; less is better."""

    asked: str
    show: Callable[[float], str]
    found: Sequence[Sequence[float]]

    def shown(self) -> list[str]:
        return [self.show(statistics.median(rounds)) for rounds in self.found]


@dataclass(frozen=True)
class Report:
    """What is told of the loads, of the servers (ours is the last), and at which second each load began."""

    loads: Sequence[Load]
    sides: Sequence[Side]
    starts: dict[str, float]
    watch: float

    def _row(self, load: Load, what: str, show: Callable[[float], str], of: Callable[[Round], float]) -> Row:
        return Row(f"{load.name}: {what}", show, [[*map(of, side.rounds[load.name])] for side in self.sides])

    def rows(self) -> list[Row]:
        rows = list[Row]()
        for load in self.loads:
            rows += [
                self._row(load, "half of the clients answered", in_words, _share(load, 0.5)),
                self._row(load, "all answered", in_words, _share(load, 1.0)),
                self._row(load, "health check, median", in_words, _check(0.5)),
                self._row(load, "health check, slowest", in_words, _check(1.0)),
                self._row(load, "clients without an answer", "{:.0f}".format, lambda found: found.failed),
            ]
        whole: dict[str, tuple[Callable[[float], str], Callable[[Side], float]]] = {
            "threads, most": (str, lambda side: max(sample.threads for sample in side.samples)),
            f"threads {self.watch:g} s after the last answer": (str, lambda side: side.samples[-1].threads),
            "processor seconds": ("{:.1f}".format, lambda side: side.samples[-1].cpu - side.samples[0].cpu),
            "memory, most (MiB)": ("{:.0f}".format, lambda side: side.memory / 1024),
        }
        return rows + [Row(what, show, [[of(side)] for side in self.sides]) for what, (show, of) in whole.items()]

    def table(self) -> list[list[str]]:
        return [["", *(side.name for side in self.sides)], *([row.asked, *row.shown()] for row in self.rows())]

    def ahead(self) -> list[str]:
        """Say in which rows a rival was ahead of ours as far as the table shows it, and in how many rounds."""
        said = list[str]()
        for row in self.rows():
            *rivals, (ours, our, _) = zip(row.found, row.shown(), self.sides, strict=True)
            best, shown, side = min(rivals, key=lambda each: statistics.median(each[0]))
            if statistics.median(best) < statistics.median(ours) and shown != our:
                rounds = f", in {sum(map(operator.lt, best, ours))} of {len(ours)} rounds" if len(ours) > 1 else ""
                said.append(f"{row.asked}: {shown} ({side.name}), {our} (ebbpool){rounds}")
        first = "In these rows a rival is ahead, perhaps by chance if in about half of the rounds:"
        return [first, *said] if said else ["No rival is ahead in any row."]

    def about(self) -> str:
        core = "compiled" if ebbpool.COMPILED else "plain"
        ran = f"ebbpool {ebbpool.__version__} ({core} core), CPython {platform.python_version()}, {os.cpu_count()} CPUs"
        return f"{ran}. Less is better. Figures are medians over the rounds; a picture shows the middle one of them."

    def text(self) -> str:
        return "\n".join([aligned(self.table()), "", *self.ahead(), "", self.about()])

    def _told(self, row: Row) -> str:
        return ", ".join(f"{shown} ({side.name})" for side, shown in zip(self.sides, row.shown(), strict=True))

    def _picture(self, title: str, said: str, lines: Iterable[Iterable[tuple[float, float]]], **axes: Any) -> str:
        """Return a figure with a line of points for each server, and the sentence about it; `axes` is how it is set."""
        figure = Figure(figsize=(4.8, 3), layout="constrained")
        drawn, plot = io.BytesIO(), figure.subplots()
        for (color, width), points in zip(_LINES, lines, strict=True):
            plot.plot(*zip(*points, strict=True), color=color, linewidth=width, drawstyle="steps-post")
        plot.set_title(f"{title}, {self.sides[-1].name}", loc="left", fontsize=11)
        plot.grid(axis="y", color="#E5E5E5")
        plot.spines[["top", "right"]].set_visible(False)
        plot.set(**axes)
        figure.savefig(drawn, format="svg")
        source = f"data:image/svg+xml;base64,{base64.b64encode(drawn.getvalue()).decode()}"
        return f'<figure><img alt="{title}" src="{source}"><figcaption>{html.escape(said)}</figcaption></figure>'

    def _pictures(self, load: Load) -> Iterator[str]:
        """Yield the pictures of a load: who is answered when, and the health check beside."""
        of = {row.asked: row for row in self.rows()}
        shown = [side.typical(load) for side in self.sides]
        x = {"xlabel": "seconds since all asked", "xlim": (0, max(found.seconds for found in shown))}
        said = f"Time until all {load.clients} are answered: {self._told(of[f'{load.name}: all answered'])}"
        if any(map(any, (failed := of[f"{load.name}: clients without an answer"]).found)):
            said += f"; without an answer: {self._told(failed)}"
        answers = ([*zip([0, *found.answers], count()), (found.seconds, len(found.answers))] for found in shown)
        yield self._picture("Right answers", f"{said}.", answers, **x)
        slowest = of[f"{load.name}: health check, slowest"]
        said = f"Slowest sync health check beside them, since it was due: {self._told(slowest)}."
        checks = [[(due, latency * 1e3) for due, latency in found.checks] for found in shown]
        ticks = [tick for tick in (1, 10, 100, 1000, 10000) if tick <= max(ms for _, ms in chain(*checks))]
        yield self._picture("Health check (ms)", said, checks, yscale="log", yticks=ticks, yticklabels=ticks, **x)

    def _threads(self) -> str:
        row = self.rows()[-3]
        names = [f"{name}\n{at:.0f} s" for name, at in self.starts.items()]
        points = ([(sample.at, sample.threads) for sample in side.samples] for side in self.sides)
        axes = {"xticks": [*self.starts.values()], "xticklabels": names}
        return self._picture("Threads", f"{row.asked.capitalize()}: {self._told(row)}.", points, **axes)

    def page(self) -> str:
        """Return it as one page that needs no other file."""
        sides = zip(_LINES, self.sides, strict=True)
        legend = "<p>" + "".join(f'<i style="background:{color}"></i> {side.name} ' for (color, _), side in sides)
        heading = f"FastAPI with and without ebbpool {ebbpool.__version__}"
        parts = [f"<h1>{heading}</h1>"]
        for load in self.loads:
            parts += [f"<h2>{load.clients} clients ask at once for something that {load.does}</h2>", legend]
            parts += ["<section>", *self._pictures(load), "</section>"]
        parts += ["<h2>Threads over time</h2>", legend, "<section>", self._threads(), "</section><h2>All figures</h2>"]
        first, *ahead = map(html.escape, self.ahead())
        parts += [f"<p>{first}<ul>", *(f"<li>{each}" for each in ahead), "</ul><table>"]
        parts += ["<tr>" + "".join(f"<td>{html.escape(cell)}" for cell in row) for row in self.table()]
        head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{heading}</title>'
        body = "\n".join([*parts, f"</table><p>{html.escape(self.about())}"])
        return f'<!doctype html><html lang="en">{head}<style>{_STYLE}</style>{body}</html>\n'
