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
        return _encoded(snapshot(_stacks_wanted(line)))
    except _Misunderstood as error:
        return refusal(str(error))
    except Exception as error:
        return refusal(f"{type(error).__name__}: {error}")


def refusal(reason: str) -> bytes:
    """Return the line for a client that gets no answer."""
    return _encoded({"error": reason})


def _encoded(reply: dict[str, Any]) -> bytes:
    return json.dumps(reply, separators=(",", ":")).encode() + b"\n"


class _Misunderstood(Exception):
    """What is wrong with a request."""


def _stacks_wanted(line: bytes) -> bool:
    """Return whether a request asks for stacks; raise `_Misunderstood` if it is none."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _Misunderstood(f"a request must be one JSON object on one line: {error}") from error
    if not isinstance(request, dict):
        raise _Misunderstood(f"a request must be a JSON object, not {reprlib.repr(request)}")
    for name in request:
        if name not in KNOWN:
            known = " and ".join(map(repr, KNOWN))
            raise _Misunderstood(f"a request may have {known}, not {reprlib.repr(name)}")
    if request.get("get") != "snapshot":
        raise _Misunderstood(f"'get' must be 'snapshot', not {reprlib.repr(request.get('get'))}")
    stacks = request.get("stacks", False)
    if not isinstance(stacks, bool):
        raise _Misunderstood(f"'stacks' must be true or false, not {reprlib.repr(stacks)}")
    return stacks
