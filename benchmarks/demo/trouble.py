"""The FastAPI case's second load: steady traffic on an app whose slow neighbour has trouble for a while."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from .corpus import encode
from .plan import Draft, Kind, Phase, Plan, Scale
from .upstream import SLOW

KINDS: tuple[Kind, ...] = ("health", "digest", "verify")
MIX = (0.2, 0.2, 0.6)
PAUSE = 1.3
"""The least time between two requests of a client (s): more than the slowest takes by itself, in trouble too."""

STEADY = Scale(clients=300, rate=150.0, steady=8.0, quiet=0.0)
STEADY_QUICK = Scale(clients=60, rate=30.0, steady=1.0, quiet=0.0, watch=0.5, files=20)


def trouble(scale: Scale) -> tuple[float, float]:
    """Return from when to when the store has trouble (s from the start of the load)."""
    return scale.steady / 4, scale.steady * 5 / 8


def answer(kind: Kind, path: str, digests: Mapping[str, str]) -> str:
    """Return the body that an endpoint of the FastAPI app must answer with."""
    if kind == "health":
        return '{"ok":true}'
    digest = digests[path]
    body = {"path": path, "sha256": digest} | ({"stored": digest} if kind == "verify" else {})
    return encode(body).decode()


def make_trouble(scale: Scale, digests: Mapping[str, str]) -> Plan:
    """Draw the load."""
    draft = Draft(scale)
    paths = sorted(digests)
    begins, ends = trouble(scale)
    for client, at in draft.arrivals(PAUSE):
        (kind,) = draft.dice.choices(KINDS, MIX)
        path = "" if kind == "health" else draft.dice.choice(paths)
        phase: Phase = "trouble" if begins <= at < ends else "steady"
        asked = {} if kind == "health" else {"path": path}
        if kind == "verify":
            asked["n"] = (SLOW if phase == "trouble" else "") + str(len(draft.requests))
        draft.add(client, at, phase, kind, path, asked, partial(answer, kind, path, digests))
    return draft.plan(digests)
