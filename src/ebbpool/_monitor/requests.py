"""The lines that clients send, and what they are answered: one JSON object each way."""

from __future__ import annotations

import json
import reprlib
from typing import Any, Final

from ebbpool._monitor.snapshot import snapshot

LONGEST: Final = 1 << 16
"""How many bytes a request may have."""
KNOWN: Final = ("get", "stacks")


def answer(line: bytes) -> bytes:
    """Return the answer to one request; what cannot be answered is told why. Does not raise."""
    try:
        return encode(_reply(line))
    except Exception as error:
        return encode(_error(f"{type(error).__name__}: {error}"))


def too_long() -> bytes:
    """Return the answer to a request of more than `LONGEST` bytes."""
    return encode(_error(f"a request may have {LONGEST} bytes at most, and ends with a newline"))


def refusal(reason: str) -> bytes:
    """Return the line for a client that is turned away."""
    return encode(_error(reason))


def encode(reply: dict[str, Any]) -> bytes:
    """Return one line of JSON."""
    return json.dumps(reply, separators=(",", ":")).encode() + b"\n"


def _reply(line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        return _error(f"a request must be one JSON object on one line: {error}")
    if not isinstance(request, dict):
        return _error(f"a request must be a JSON object, not {reprlib.repr(request)}")
    for name in request:
        if name not in KNOWN:
            return _error(f"a request may have {' and '.join(map(repr, KNOWN))}, not {reprlib.repr(name)}")
    if request.get("get") != "snapshot":
        return _error(f"'get' must be 'snapshot', not {reprlib.repr(request.get('get'))}")
    stacks = request.get("stacks", False)
    if not isinstance(stacks, bool):
        return _error(f"'stacks' must be true or false, not {reprlib.repr(stacks)}")
    return snapshot(stacks)


def _error(reason: str) -> dict[str, Any]:
    return {"error": reason}
