"""The load, decided beforehand: who asks for what, and when."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlencode

from .answers import Answers

Kind = Literal["search", "digest", "verify", "health"]
Phase = Literal["steady", "burst", "trouble"]

KINDS: tuple[Kind, ...] = ("search", "digest", "verify")
PAUSE = 0.4
"""The least time between two requests of a client (s). It is more than the slowest request takes by itself:
what has to wait waits for the server, not for its own client."""
STEADY_MIX = (0.79, 0.06, 0.15)
BURST_MIX = (0.45, 0.05, 0.50)

QUERIES = (
    "socket timeout", "thread lock", "open file", "event loop", "queue put", "parse header",
    "decode bytes", "signal handler", "weakref callback", "import os", "class Future", "def submit",
    "yield from", "async await", "namedtuple fields", "struct unpack", "path join",
    "regular expression", "garbage collection", "context manager", "base64 encode", "ssl certificate",
    "zip archive", "date time", "locale encoding", "process spawn", "pipe read", "memory view",
    "deque append", "heap push", "random seed", "unicode normalize", "json dumps", "email message",
    "tar header", "compile ast", "frame traceback", "descriptor property", "iterator next",
    "partial reduce",
)  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """How much load, for how long. All times in seconds."""

    clients: int = 300
    rate: float = 200.0
    steady: float = 8.0
    quiet: float = 3.0
    watch: float = 12.0
    files: int | None = None
    patience: float = 20.0
    """Time from the burst after which whatever is unanswered counts as an error."""
    seed: int = 20

    @property
    def burst_at(self) -> float:
        """When the burst comes, counted from the start of the load."""
        return self.steady + self.quiet


FULL = Scale()
QUICK = Scale(clients=40, rate=60.0, steady=1.0, quiet=0.4, watch=0.5, files=150)


class Request(NamedTuple):
    """One request to come; ``at`` is in seconds from the start of the load."""

    client: int
    at: float
    phase: Phase
    kind: Kind
    target: str
    answer: int
    """Which of the plan's answers has to come back."""


@dataclass(frozen=True)
class Plan:
    """Everything the load generator has to know."""

    scale: Scale
    requests: list[Request]
    answers: list[str]
    digests: dict[str, str]
    """What the slow store holds: path to SHA-256."""

    def save(self, path: Path) -> None:
        """Write the plan as JSON."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Plan:
        """Read a plan that `save` wrote."""
        data = json.loads(path.read_text(encoding="utf-8"))
        requests = [Request(*row) for row in data["requests"]]
        return cls(Scale(**data["scale"]), requests, data["answers"], data["digests"])


class Draft:
    """A plan as it is drawn from its scale's seed: the same scale and files always give the same plan."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self.dice = random.Random(scale.seed)
        self.requests: list[Request] = []
        self._bodies: list[str] = []
        self._known: dict[tuple[Kind, str], int] = {}

    def arrivals(self, pause: float) -> Iterator[tuple[int, float]]:
        """Draw who asks when, for as long as the load is steady; between two requests of a client are ``pause`` s."""
        gap = self.scale.clients / self.scale.rate
        for client in range(self.scale.clients):
            at = -self.dice.uniform(0.0, 10 * gap)
            while at < self.scale.steady:
                if at >= 0.0:
                    yield client, at
                at += pause + self.dice.expovariate(1.0 / (gap - pause))

    def add(
        self,
        client: int,
        at: float,
        phase: Phase,
        kind: Kind,
        about: str,
        asked: dict[str, str],
        body: Callable[[], str],
    ) -> None:
        """Add a request with the query ``asked``; ``body`` makes the answer to ``kind`` and ``about`` if it is new."""
        if (kind, about) not in self._known:
            self._known[kind, about] = len(self._bodies)
            self._bodies.append(body())
        target = f"/{kind}?{urlencode(asked)}" if asked else f"/{kind}"
        self.requests.append(Request(client, round(at, 4), phase, kind, target, self._known[kind, about]))

    def plan(self, digests: Mapping[str, str]) -> Plan:
        """Return what was drawn."""
        return Plan(self.scale, self.requests, self._bodies, dict(digests))


def make_plan(scale: Scale, answers: Answers) -> Plan:
    """Draw the load."""
    draft = Draft(scale)
    paths, queries = sorted(answers.digests), answers.useful()

    def add(client: int, at: float, phase: Phase) -> None:
        (kind,) = draft.dice.choices(KINDS, STEADY_MIX if phase == "steady" else BURST_MIX)
        about = draft.dice.choice(paths if kind == "verify" else queries)
        asked = {"n": str(len(draft.requests)), "path": about} if kind == "verify" else {"q": about}
        draft.add(client, at, phase, kind, about, asked, lambda: getattr(answers, kind)(about).decode())

    for client, at in draft.arrivals(PAUSE):
        add(client, at, "steady")
    for client in range(scale.clients):
        add(client, scale.burst_at, "burst")
    return draft.plan(answers.digests)
