"""The child process that measures one peer under one variant and prints one line of JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from benchmarks.engine.model import load_question
from benchmarks.peers import Unavailable
from benchmarks.peers.table import peer_named

MARK = "benchmark-cell:"


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


if __name__ == "__main__":
    outcome = measure(json.loads(sys.argv[1]))
    print(MARK + json.dumps(outcome), flush=True)
