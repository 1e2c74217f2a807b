"""The child process that measures one peer under one variant and prints one line of JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from benchmarks.engine.model import load_question
from benchmarks.peers import Unavailable
from benchmarks.peers.peer import AT
from benchmarks.peers.table import BY_NAME

MARK = "benchmark-cell:"


def gil_enabled() -> bool:
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Runs the cell that `spec` names: `module`, `peer`, `params` and `pin`."""
    if spec["pin"] is not None:
        os.sched_setaffinity(0, {spec["pin"]})
    # Of another checkout, its environment says where that is.
    peer, question = BY_NAME[spec["peer"].partition(AT)[0]], load_question(spec["module"])
    try:
        version = peer.load()
        samples = question.measure(peer, spec["params"])
    except Unavailable as reason:
        return {"status": "missing", "reason": str(reason)}
    return {"status": "ok", "samples": samples, "version": version, "gil": gil_enabled()}


if __name__ == "__main__":
    outcome = measure(json.loads(sys.argv[1]))
    print(MARK + json.dumps(outcome), flush=True)
