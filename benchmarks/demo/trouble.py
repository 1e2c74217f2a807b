"""The FastAPI case's second load: steady traffic on an app whose slow neighbour has trouble for a while."""

from __future__ import annotations

import random
from collections.abc import Mapping
from urllib.parse import urlencode

from .corpus import encode
from .plan import Kind, Phase, Plan, Request, Scale
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
    """Draw the load from the scale's seed: the same scale and files always give the same plan."""
    dice = random.Random(scale.seed)
    paths = sorted(digests)
    begins, ends = trouble(scale)
    requests: list[Request] = []
    bodies: list[str] = []
    known: dict[tuple[Kind, str], int] = {}
    gap = scale.clients / scale.rate
    for client in range(scale.clients):
        at = -dice.uniform(0.0, 10 * gap)
        while at < scale.steady:
            if at >= 0.0:
                (kind,) = dice.choices(KINDS, MIX)
                path = "" if kind == "health" else dice.choice(paths)
                phase: Phase = "trouble" if begins <= at < ends else "steady"
                if (kind, path) not in known:
                    known[kind, path] = len(bodies)
                    bodies.append(answer(kind, path, digests))
                asked = {} if kind == "health" else {"path": path}
                if kind == "verify":
                    asked["n"] = (SLOW if phase == "trouble" else "") + str(len(requests))
                target = f"/{kind}?{urlencode(asked)}" if asked else f"/{kind}"
                requests.append(Request(client, round(at, 4), phase, kind, target, known[kind, path]))
            at += PAUSE + dice.expovariate(1.0 / (gap - PAUSE))
    return Plan(scale, requests, bodies, dict(digests))
