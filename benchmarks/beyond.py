"""Past this machine: what would the rule of growth do with 4,096 threads, 10⁶ tasks a second and 128 processors?

The rule itself runs, on a simulated machine (`load.simulation`); the real pool has the same load where it can.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.engine.cell import gil_enabled
from benchmarks.engine.model import Column, Params, Question, Samples, Settings, Variant, percentile
from benchmarks.engine.runner import processors
from benchmarks.load.simulation import Machine, Simulation, Task
from benchmarks.peers.peer import Peer
from benchmarks.peers.pools import adaptive
from ebbpool._pool.sizing import WorkerBounds

SERVICES = ("constant", "exponential", "Pareto", "bimodal")
RATES = (1_000, 10_000, 100_000, 1_000_000)
CEILINGS = (8, 64, 512, 4_096)
MOST_PROCESSORS = 128
SHARE = 0.7
"""How much of its ceiling the load needs, by Little's law."""

_FEWER = (2, 8, 32)
_FEWER_AT = (10_000, 512)
_REAL = ((1_000, 8), (1_000, 64), (10_000, 64), (10_000, 512))
_SHAPE = 1.5
_TICK = 0.001
MODEL, OURS = "simulation", "ebbpool"


def service(kind: str, mean: float, rng: random.Random) -> float:
    """Return the seconds that one task blocks for; of each kind the mean is the same."""
    match kind:
        case "exponential":
            return rng.expovariate(1 / mean)
        case "Pareto":
            return mean * (_SHAPE - 1) / _SHAPE * rng.paretovariate(_SHAPE)
        case "bimodal":
            return mean * (5.5 if rng.random() < 0.1 else 0.5)
    return mean


def arrivals(params: Params) -> Iterator[tuple[float, float]]:
    """Yield when each task comes, at random, and how long it blocks."""
    rate, mean = params["rate"], SHARE * params["threads"] / params["rate"]
    seconds = min(max(params["least"], 4 * mean), max(params["most"] / rate, 1.5 * mean))
    rng, now = random.Random(20), 0.0
    while (now := now + rng.expovariate(rate)) < seconds:
        yield now, service(params["service"], mean, rng)


def _samples(waits: list[float], threads: int) -> Samples:
    """The first half has the cold start in it, the second half tells how the pool does once it has grown."""
    half = len(waits) // 2
    return {
        "threads": [threads],
        "p50": [percentile(waits[half:], 0.5) * 1e3],
        "p99": [percentile(waits[half:], 0.99) * 1e3],
        "cold": [percentile(waits[:half], 0.99) * 1e3],
    }


def _simulated(params: Params) -> Samples:
    # 10⁶ tasks a second are nothing for one thread at a time: with the GIL only what is checked here is simulated.
    gil = gil_enabled() and bool(params["checked"]) and params["processors"] == params["here"]
    simulation = Simulation(Machine(cpus=params["processors"], gil=gil), WorkerBounds(0, params["threads"], 0))
    for moment, seconds in arrivals(params):
        simulation.submit(Task((-seconds,)), at=moment)
    result = simulation.run()
    return _samples(result.waits, result.peak)


def _real(params: Params) -> Samples:
    waits, sleep, clock = list[float](), time.sleep, time.perf_counter
    pool: Any = adaptive(params["threads"], 10.0)

    def work(number: int, submitted: float, seconds: float) -> None:
        waits[number] = clock() - submitted
        sleep(seconds)

    due = list(arrivals(params))
    waits += [0.0] * len(due)
    with pool:
        begin = clock()
        for number, (moment, seconds) in enumerate(due):
            if (rest := begin + moment - clock()) > 0:
                sleep(max(rest, _TICK))
            pool.submit(work, number, clock(), seconds)
    return _samples(waits, int(pool.stats().started))


def measure(peer: Peer, params: Params) -> Samples:
    """Offer the load; what waits is timed from the moment it was submitted."""
    return _simulated(params) if peer.name == MODEL else _real(params)


def _variant(rate: int, threads: int, kind: str, count: int, checked: bool) -> Variant:
    return {"processors": count, "rate": rate, "threads": threads, "service": kind, "checked": checked}


def _checked() -> list[Variant]:
    here = len(processors())
    return [_variant(rate, threads, kind, here, True) for rate, threads in _REAL for kind in SERVICES]


def _chosen(found: list[Variant], settings: Settings) -> list[Variant]:
    return [one for one in found if one["service"] == SERVICES[0] and one["rate"] < 1e6] if settings.quick else found


def variants(peer: Peer, settings: Settings) -> list[Variant] | str:
    if peer.name == OURS:
        return _chosen(_checked(), settings)
    if peer.name != MODEL:
        return "only the rule of ebbpool is simulated"
    far = [
        _variant(rate, threads, kind, MOST_PROCESSORS, False)
        for rate in RATES
        for threads in CEILINGS
        for kind in SERVICES
    ]
    fewer = [_variant(*_FEWER_AT, kind, count, False) for count in _FEWER for kind in SERVICES]
    return _chosen([*_checked(), *fewer, *far], settings)


def _text(answers: Any, peer: str, variant: Variant) -> str:
    figures = [answers.figure(peer, variant, column) for column in (COLUMNS[0], COLUMNS[2])]
    return "-" if None in figures else f"{figures[0].value:,.0f}; {figures[1].value:,.2f}"


def findings(answers: Any) -> tuple[list[str], list[list[str]]]:
    """Return a row for each rate, ceiling and number of processors; a column for each kind of service."""
    rows: list[list[str]] = []
    heads: dict[tuple[Any, ...], Variant] = {}
    for _, variant in answers.plan.cells:
        heads.setdefault(tuple(value for name, value in variant.items() if name != "service"), variant)
    for variant in heads.values():
        for peer in (MODEL, OURS) if variant["checked"] else (MODEL,):
            cells = [_text(answers, peer, variant | {"service": kind}) for kind in SERVICES]
            if any(cell != "-" for cell in cells):
                sizes = [f"{variant['rate']:,}", f"{variant['threads']:,}", str(variant["processors"])]
                rows.append([*sizes, "measured" if peer == OURS else "model", *cells])
    kinds = [f"{kind}: threads; p99, ms" for kind in SERVICES]
    return ["tasks/s", "ceiling", "processors", "this is", *kinds], rows


def lead(answers: Any) -> str:
    """Return how far the simulation is from what was measured."""
    pairs: dict[str, list[float]] = {"threads": [], "p99": []}
    for variant in [variant for asked, variant in answers.plan.cells if asked.name == OURS]:
        for metric, column in (("threads", COLUMNS[0]), ("p99", COLUMNS[2])):
            sides = [answers.figure(peer, variant, column) for peer in (MODEL, OURS)]
            if None not in sides and sides[1].value:
                pairs[metric].append(sides[0].value / sides[1].value)
    if not pairs["threads"]:
        return "**All of this is a model**: nothing of it was measured here."
    spread = {metric: f"{min(found):.2f} to {max(found):.2f}" for metric, found in pairs.items()}
    text = (
        f"**All but {len(pairs['threads'])} cells are a model.** Where the load could run here, the simulation has "
        f"{spread['threads']} times the threads that were measured, and {spread['p99']} times the p99 of the wait"
    )
    if pairs["p99"] and max(pairs["p99"]) <= 1:
        text += ": its waits are the least that can be expected, since it leaves out what else makes a thread late"
    return f"{text}."


COLUMNS = (
    Column("threads", "threads at most", 0, ratio=False),
    Column("p50", "p50 of the wait, ms", 3, ratio=False),
    Column("p99", "p99 of the wait, ms", 3, ratio=False),
    Column("cold", "p99 in the first half, ms", 3, ratio=False),
)

QUESTION = Question(
    module="benchmarks.beyond",
    title="Past this machine: a simulation",
    method=f"tasks that block come at random, and need {SHARE:.0%} of the ceiling's threads on average, by Little's "
    "law; service: constant, exponential, Pareto (shape 1.5: no finite variance) or bimodal (one in ten takes "
    "eleven times as long), of one mean; the pool starts cold, and the wait is that of the second half of the "
    "tasks; measured: the real pool under the same load, with the GIL if there is one here; the model has a "
    "GIL there too, and none elsewhere",
    columns=COLUMNS,
    variants=variants,
    sizes=lambda quick: {
        "least": 0.3 if quick else 1.0,
        "most": 6_000 if quick else 40_000,
        "here": len(processors()),
    },
    measure=measure,
    rival=(MODEL, "x model"),
    rounds_factor=1 / 3,
    findings=findings,
    contests=lambda answers: (),
    lead=lead,
    floor="a task that finds an idle worker waits for nothing but its wake-up, some 30 µs in the model",
    limits="in the model the time that starting threads takes (60 µs each) while a pool grows, and the random number "
    "of tasks at a time, which goes beyond the ceiling now and then; it has no mutex, no caches, no memory "
    "bandwidth, and submitting costs nothing: at 10⁵ tasks a second and more a real pool is bound by those "
    "first",
    quick_cells=0,
)
