"""Runs questions: each cell in a fresh process, the peers in turn, round by round; writes one JSON file.

That process runs this module: it measures one peer under one variant, and prints one line of JSON.

The file has the machine, the versions, the commit, the settings, and of each question the cells with every sample, by
metric and round; of a cell without samples it has the round, a status ("missing", "skipped", "failed" or "timeout")
and the reason.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import ROOT, processors
from benchmarks.engine.model import Question, Settings, Variant, load_question
from benchmarks.peers import Unavailable
from benchmarks.peers.peer import Peer
from benchmarks.peers.table import peer_named

FORMAT = 1
TIMEOUT_SECONDS = 120.0
_TAIL_LINES = 12
_MARK = "benchmark-cell:"


def gil_enabled() -> bool:
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Run the cell that `spec` names: `question`, `peer`, `params` and `pin`."""
    if spec["pin"] is not None:
        os.sched_setaffinity(0, {spec["pin"]})
    peer, question = peer_named(spec["peer"]), load_question(spec["question"])
    try:
        version = peer.load()
        samples = question.measure(peer, spec["params"])
    except Unavailable as reason:
        return {"status": "missing", "reason": str(reason)}
    return {"status": "ok", "samples": samples, "version": version, "gil": gil_enabled()}


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


def machine() -> dict[str, Any]:
    """Return the facts without which the figures mean nothing."""
    model = ""
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "python": sys.version,
        "implementation": platform.python_implementation(),
        "gil": gil_enabled(),
        "platform": platform.platform(),
        "processor": model,
        "processors": processors(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-_TAIL_LINES:])


def run_cell(
    question: str, peer: Peer, params: dict[str, Any], pin: int | None, timeout: float = TIMEOUT_SECONDS
) -> dict[str, Any]:
    """Measure in a fresh process; return `status`, and `samples`, `version` and `gil`, or the `reason` why not."""
    spec = {"question": question, "peer": peer.name, "params": params, "pin": pin}
    kept = {name: value for name, value in os.environ.items() if name != "EBBPOOL_PURE"}
    command = [sys.executable, "-m", "benchmarks.engine.runner", json.dumps(spec)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=kept | peer.env, capture_output=True, text=True, timeout=timeout
        )  # fmt: skip
    except subprocess.TimeoutExpired as expired:
        stderr: Any = expired.stderr or b""
        tail = _tail(stderr.decode(errors="replace") if isinstance(stderr, bytes) else stderr)
        return {"status": "timeout", "reason": f"no end after {timeout:g} s\n{tail}".strip()}
    lines = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if done.returncode or not lines:
        return {"status": "failed", "reason": f"exit status {done.returncode}\n{_tail(done.stderr)}".strip()}
    answer: dict[str, Any] = json.loads(lines[-1].removeprefix(_MARK))
    return answer


def cells_of(question: Question, settings: Settings) -> list[tuple[Peer, Variant]]:
    """Return the cells of one round; ours of another checkout stands beside ours."""
    found = []
    for name in question.peers.split():
        peer = peer_named(name)
        if settings.peers and name not in settings.peers:
            continue
        for variant in question.cells(name, settings):
            found.append((peer, variant))
            if settings.beside and peer.core is not None:
                found.append((peer.of_checkout(Path(settings.beside)), variant))
    return found


def in_turn(cells: Sequence[tuple[Peer, Variant]], number: int, rounds: int) -> list[tuple[Peer, Variant]]:
    """Return the cells of round `number`, peers beside each other.

    Who comes first moves on with the rounds, and neighbours change places.
    """
    variants = list(dict.fromkeys(json.dumps(variant) for _, variant in cells))
    ordered = sorted(cells[::-1] if number % 2 else cells, key=lambda each: variants.index(json.dumps(each[1])))
    start = number * max(1, len(cells) // rounds) % max(1, len(cells))
    return ordered[start:] + ordered[:start]


def _short(value: float) -> float | int:
    """Return six digits of it: more are noise, and take room."""
    found = float(f"{value:.6g}")
    return int(found) if found.is_integer() else found


class Recorder:
    """One run while it goes on.

    Attributes:
        document: What is written as JSON.
    """

    def __init__(self, questions: Sequence[Question], settings: Settings) -> None:
        self._settings = settings
        beside = commit(Path(settings.beside)) if settings.beside else ""
        self.document: dict[str, Any] = {
            "format": FORMAT,
            "taken": "",
            "seconds": 0,
            "commit": commit(),
            "machine": machine(),
            # Not where the other checkout is, but what.
            "settings": asdict(settings) | {"beside": beside},
            "versions": {},
            "questions": {
                question.name: {"sizes": question.sized(settings.quick), "rounds": 0, "cells": []}
                for question in questions
            },
        }

    def _cell(self, question: str, peer: str, variant: Variant) -> dict[str, Any]:
        cells: list[dict[str, Any]] = self.document["questions"][question]["cells"]
        for found in cells:
            if found["peer"] == peer and found["variant"] == variant:
                return found
        cells.append({"peer": peer, "variant": variant, "samples": {}, "without": []})
        return cells[-1]

    def ask(self, question: Question, number: int, rounds: int, announce: Callable[[str], None]) -> None:
        """Have round `number`, from 0; what was missing before, or out of time, is not asked again.

        The plain core is asked in the first round alone: it is there to be known, and its noise is the compiled core's.
        """
        entry = self.document["questions"][question.name]
        entry["rounds"] = number + 1
        cells = cells_of(question, self._settings)
        compiled = any(peer.core for peer, _ in cells)
        for peer, variant in in_turn(cells, number, rounds):
            shown = " ".join(f"{name}={value}" for name, value in variant.items())
            announce(f"{question.name} round {number + 1}/{rounds} {peer.name} {shown}")
            cell = self._cell(question.name, peer.name, variant)
            given_up = any(status in ("missing", "timeout") for _, status, _ in cell["without"])
            if given_up or (number and compiled and peer.core is False and not self._settings.peers):
                continue
            begun = time.monotonic()
            if question.skip is not None and (why := question.skip(entry["cells"], peer.name, variant)):
                answer: dict[str, Any] = {"status": "skipped", "reason": why}
            else:
                answer = run_cell(question.name, peer, entry["sizes"] | variant, self._settings.pin)
            self.document["seconds"] += round(time.monotonic() - begun, 1)
            self._record(cell, peer, number + 1, answer)

    def _record(self, cell: dict[str, Any], peer: Peer, number: int, answer: dict[str, Any]) -> None:
        versions = self.document["versions"]
        if answer["status"] != "ok":
            cell["without"].append([number, answer["status"], answer["reason"]])
            if answer["status"] == "missing":
                versions.setdefault(peer.name, answer["reason"])
            return
        switched = answer["gil"] and not self.document["machine"]["gil"]
        versions[peer.name] = answer["version"] + (", which switched the GIL on" if switched else "")
        for metric, samples in answer["samples"].items():
            cell["samples"].setdefault(metric, {})[str(number)] = [_short(sample) for sample in samples]


def run(
    questions: Sequence[Question],
    settings: Settings,
    announce: Callable[[str], None],
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[dict[str, Any]]:
    """Yield the document after each round of each question.

    Every question has its first round before any has its second: what changes in the machine meanwhile is then part of
    the noise that is seen. A round that would end after `seconds` is left out, unless it is the first.
    """
    recorder = Recorder(questions, settings)
    begun, took = clock(), dict[str, float]()
    for number in range(max(question.rounds(settings) for question in questions)):
        for question in questions:
            rounds = question.rounds(settings)
            if number >= rounds or (number and clock() - begun + took[question.name] > seconds):
                continue
            start = clock()
            recorder.ask(question, number, rounds, announce)
            took[question.name] = clock() - start
            recorder.document["taken"] = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
            yield recorder.document


def save(path: Path, document: dict[str, Any]) -> None:
    """Write the JSON, a line for each cell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = []
    for name, question in document["questions"].items():
        lines = ",\n".join(json.dumps(cell, ensure_ascii=False, separators=(",", ":")) for cell in question["cells"])
        head = json.dumps({key: value for key, value in question.items() if key != "cells"}, ensure_ascii=False)[:-1]
        parts.append(f'{json.dumps(name)}: {head}, "cells": [\n{lines}\n]}}')
    text = json.dumps(document | {"questions": {}}, indent=1, ensure_ascii=False)
    joined = ",\n".join(parts)
    path.write_text(text.replace('"questions": {}', f'"questions": {{\n{joined}\n}}') + "\n", encoding="utf-8")


if __name__ == "__main__":
    print(_MARK + json.dumps(measure(json.loads(sys.argv[1]))), flush=True)
