"""A run as JSON and back: machine, versions, commit, settings and every sample."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine.cell import gil_enabled
from benchmarks.engine.model import GC_POLICY, ROOT, Settings, Variant, load_question
from benchmarks.engine.runner import Outcome, Plan, pinning_available, processors
from benchmarks.peers.peer import Peer
from benchmarks.peers.table import BY_NAME, PEERS
from benchmarks.report.report import Answers, Verdict

FORMAT = 1


def load_average() -> float | None:
    """Tasks that wanted a processor over the last minute, where the system tells."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def busy() -> str:
    """A warning if others use this machine, or ""."""
    load = load_average()
    if load is None or load < 0.5 * len(processors()):
        return ""
    count = len(processors())
    return f"this machine is busy (load average {load:.1f} on {count} processors): the figures are noisy"


def machine(beside: str = "") -> dict[str, Any]:
    """Facts without which the figures mean nothing; `beside` is the folder of another checkout that is measured."""
    model = ""
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "python": sys.version,
        "implementation": platform.python_implementation(),
        "free_threaded_build": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        "gil": gil_enabled(),
        "platform": platform.platform(),
        "processor": model,
        "cpu_count": os.cpu_count(),
        "processors": processors(),
        "load_average": load_average(),
        "commit": commit(),
        "beside": commit(Path(beside)) if beside else "",
    }


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def commit(folder: Path = ROOT) -> str:
    """Return the commit that is checked out, with "+" if files differ from it; "" outside a repository."""
    found = _git(folder, "rev-parse", "--short=12", "HEAD")
    return found + ("+" if found and _git(folder, "status", "--porcelain", "--untracked-files=no") else "")


def core(answers: Sequence[Answers]) -> str:
    """Which of ebbpool's cores this run measured."""
    ran = {outcome.peer for found in answers for outcome in found.outcomes if outcome.status == "ok"}
    ours = [peer for peer in PEERS if peer.name in ran and peer.core is not None]
    return " and ".join(sorted({"compiled" if peer.core else "plain" for peer in ours})) or "none"


def pinned(settings: Settings, asked: bool) -> str:
    if settings.pin is not None:
        return f"every cell held to processor {settings.pin}"
    return "not available" if asked and not pinning_available() else "no"


def _short(value: float) -> float | int:
    """Return six digits of it: more are noise, and take room."""
    found = float(f"{value:.6g}")
    return int(found) if found.is_integer() else found


def _cells(answers: Answers) -> list[dict[str, Any]]:
    """Return each cell once, with its samples by metric and round."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for outcome in answers.outcomes:
        if outcome.status == "n/a":
            continue
        cell = found.setdefault(
            (outcome.peer, json.dumps(outcome.variant)), {"peer": outcome.peer, "variant": outcome.variant}
        )
        if outcome.status != "ok":
            cell.setdefault("without", []).append([outcome.round, outcome.status, outcome.reason])
        for metric, samples in outcome.samples.items():
            rounds = cell.setdefault("samples", {}).setdefault(metric, {})
            rounds[str(outcome.round)] = [_short(sample) for sample in samples]
    return list(found.values())


def _inapplicable(answers: Answers) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for outcome in answers.plan.inapplicable:
        reasons.setdefault(outcome.reason, []).append(outcome.peer)
    return reasons


def document(facts: dict[str, Any], settings: Settings, answers: Sequence[Answers], pin: str) -> dict[str, Any]:
    """Return the whole run as JSON: facts, raw samples, verdicts."""
    outcomes = [outcome for found in answers for outcome in found.outcomes]
    missing = {found.peer: found.reason for found in outcomes if found.status == "missing"}
    labels = {peer.name: peer.label for found in answers for peer in found.peers.values()}
    switched = sorted({found.peer for found in outcomes if found.gil and not gil_enabled()})
    return {
        "format": FORMAT,
        "taken": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "seconds": round(sum(outcome.seconds for outcome in outcomes)),
        "commit": facts["commit"],
        "machine": facts | {"load_average_after": load_average()},
        # Not where the other checkout is, but what.
        "settings": asdict(settings) | {"beside": facts["beside"], "pinned": pin, "gc": GC_POLICY},
        "core": core(answers),
        "versions": missing | {found.peer: found.version for found in outcomes if found.version},
        "labels": labels,
        "gil_switched_on_by": switched,
        "questions": {
            found.question.name: {
                "module": found.question.module,
                "seconds": round(sum(outcome.seconds for outcome in found.outcomes)),
                "sizes": found.plan.sizes,
                "rounds": max((outcome.round for outcome in found.outcomes), default=0),
                "targets": [list(asdict(verdict).values())[1:] for verdict in found.verdicts()],
                "not_asked": _inapplicable(found),
                "cells": _cells(found),
            }
            for found in answers
        },
    }


def save(path: Path, found: dict[str, Any]) -> None:
    """Write the JSON, a line for each cell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    questions = {name: dict(question) for name, question in found["questions"].items()}
    cells = {name: question.pop("cells") for name, question in questions.items()}
    text = json.dumps(found | {"questions": {}}, indent=1, ensure_ascii=False)
    parts = []
    for name, question in questions.items():
        lines = ",\n".join(json.dumps(cell, ensure_ascii=False, separators=(",", ":")) for cell in cells[name])
        head = json.dumps(question, ensure_ascii=False)[:-1]
        parts.append(f'{json.dumps(name)}: {head}, "cells": [\n{lines}\n]}}')
    joined = ",\n".join(parts)
    path.write_text(text.replace('"questions": {}', f'"questions": {{\n{joined}\n}}') + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Run:
    """A run that was read from its JSON."""

    name: str
    machine: dict[str, Any]
    taken: str
    commit: str
    seconds: int
    settings: Settings
    versions: dict[str, str]
    answers: dict[str, Answers]
    pinned: str

    def told(self) -> str:
        """Return in a line where and when it was taken."""
        facts = self.machine
        count = len(facts["processors"])
        gil = "" if facts["gil"] else " without a GIL"
        held = "" if self.settings.pin is None else ", every process held to one of them"
        quick = "; QUICK: one round of small sizes, not to be quoted" if self.settings.quick else ""
        python = f"{facts['implementation']} {facts['python'].split()[0]}{gil}"
        model = f" ({facts['processor']})" if facts["processor"] else ""
        return f"{python}, {count} processors{model}{held}, {self.taken}, commit {self.commit or 'unknown'}{quick}"


def read(path: Path) -> Run:
    """Return the run in a file.

    Raises:
        ValueError: It was written by another version of this programme.
    """
    found = json.loads(path.read_text(encoding="utf-8"))
    if found.get("format") != FORMAT:
        raise ValueError(f"{path}: format {found.get('format')!r}; this programme reads format {FORMAT}")
    stored = {name: value for name, value in found["settings"].items() if name not in ("pinned", "gc")}
    settings = Settings(**{name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()})
    return Run(
        path.stem,
        found["machine"],
        found["taken"],
        found["commit"],
        found["seconds"],
        settings,
        found["versions"],
        {name: _answers(name, question, found, settings) for name, question in found["questions"].items()},
        found["settings"]["pinned"],
    )


def _answers(name: str, stored: dict[str, Any], found: dict[str, Any], settings: Settings) -> Answers:
    cells: list[tuple[Peer, Variant]] = []
    outcomes = [Outcome(peer, {}, 0, "n/a", reason) for reason, peers in stored["not_asked"].items() for peer in peers]
    inapplicable = list(outcomes)
    switched = set(found["gil_switched_on_by"])
    for cell in stored["cells"]:
        peer = BY_NAME.get(cell["peer"]) or Peer(cell["peer"], found["labels"][cell["peer"]])
        cells.append((peer, cell["variant"]))
        numbers = {number for rounds in cell.get("samples", {}).values() for number in rounds}
        for number in sorted(numbers, key=int):
            samples = {metric: rounds[number] for metric, rounds in cell["samples"].items() if number in rounds}
            gil = True if peer.name in switched else found["machine"]["gil"]
            outcomes.append(Outcome(peer.name, cell["variant"], int(number), "ok", samples=samples, gil=gil))
        outcomes += [Outcome(peer.name, cell["variant"], *without) for without in cell.get("without", [])]
    plan = Plan(load_question(stored["module"]), stored["sizes"], cells, inapplicable, stored["rounds"])
    verdicts = [Verdict(name, *verdict) for verdict in stored["targets"]]
    return Answers(plan, settings, outcomes, found["machine"]["gil"], verdicts)
