"""Runs questions: each cell in a fresh process, the peers in turn, round by round; writes JSON files.

That process runs this module: it measures one peer under one variant, and prints one line of JSON.

A file has runs by name. Each has the machine, the versions, the commit, the settings, and of each question the cells
with every sample, by metric and round; of a cell without samples it has the round, a status ("missing", "skipped",
"failed" or "timeout") and the reason.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import ROOT, processors
from benchmarks.engine.model import Question, Settings, Variant, load_question, text_of
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
        "bytecode": not sys.dont_write_bytecode,
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
        done = subprocess.run(command, cwd=ROOT, env=kept | peer.env, capture_output=True, text=True, timeout=timeout)
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


def _cell(cells: list[dict[str, Any]], peer: str, variant: Variant) -> dict[str, Any]:
    """Return the cell of a peer and a variant, a new one if there is none yet."""
    for found in cells:
        if found["peer"] == peer and found["variant"] == variant:
            return found
    cells.append({"peer": peer, "variant": variant, "samples": {}, "without": []})
    return cells[-1]


def _ask(
    document: dict[str, Any], question: Question, settings: Settings, number: int, announce: Callable[[str], None]
) -> None:
    """Have round `number` of a question, from 1; what was missing before, or out of time, is not asked again.

    The plain core is asked in the first round alone: it is there to be known, and its noise is the compiled core's.
    """
    entry, versions, rounds = document["questions"][question.name], document["versions"], question.rounds(settings)
    entry["rounds"] = number
    cells = cells_of(question, settings)
    compiled = any(peer.core for peer, _ in cells)
    for peer, variant in in_turn(cells, number - 1, rounds):
        announce(f"{question.name} round {number}/{rounds} {peer.name} {text_of(variant)}")
        cell = _cell(entry["cells"], peer.name, variant)
        given_up = any(status in ("missing", "timeout") for _, status, _ in cell["without"])
        if given_up or (number > 1 and compiled and peer.core is False and not settings.peers):
            continue
        begun = time.monotonic()
        if question.skip is not None and (why := question.skip(entry["cells"], peer.name, variant)):
            answer: dict[str, Any] = {"status": "skipped", "reason": why}
        else:
            answer = run_cell(question.name, peer, entry["sizes"] | variant, settings.pin)
        document["seconds"] += round(time.monotonic() - begun, 1)
        if answer["status"] != "ok":
            cell["without"].append([number, answer["status"], answer["reason"]])
            if answer["status"] == "missing":
                versions.setdefault(peer.name, answer["reason"])
            continue
        switched = answer["gil"] and not document["machine"]["gil"]
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
    document: dict[str, Any] = {
        "format": FORMAT,
        "taken": "",
        "seconds": 0,
        "commit": commit(),
        "machine": machine(),
        # Not where the other checkout is, but what.
        "settings": asdict(settings) | {"beside": commit(Path(settings.beside)) if settings.beside else ""},
        "versions": {},
        "questions": {
            question.name: {"sizes": question.sized(settings.quick), "rounds": 0, "cells": []} for question in questions
        },
    }
    begun, took = clock(), dict[str, float]()
    for number in range(1, max(question.rounds(settings) for question in questions) + 1):
        for question in questions:
            start = clock()
            late = number > 1 and start - begun + took[question.name] > seconds
            if number > question.rounds(settings) or late:
                continue
            _ask(document, question, settings, number, announce)
            took[question.name] = clock() - start
            document["taken"] = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
            yield document


def _written(document: Mapping[str, Any]) -> str:
    parts = []
    for name, question in document["questions"].items():
        lines = ",\n".join(json.dumps(cell, ensure_ascii=False, separators=(",", ":")) for cell in question["cells"])
        head = json.dumps({key: value for key, value in question.items() if key != "cells"}, ensure_ascii=False)[:-1]
        parts.append(f'{json.dumps(name)}: {head}, "cells": [\n{lines}\n]}}')
    text = json.dumps({**document, "questions": {}}, indent=1, ensure_ascii=False)
    joined = ",\n".join(parts)
    return text.replace('"questions": {}', f'"questions": {{\n{joined}\n}}')


def save(path: Path, documents: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the JSON of some runs, by name, a line for each cell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    runs = ",\n".join(f"{json.dumps(name)}: {_written(document)}" for name, document in documents.items())
    path.write_text(f"{{\n{runs}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    print(_MARK + json.dumps(measure(json.loads(sys.argv[1]))), flush=True)
