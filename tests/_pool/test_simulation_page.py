"""The simulation of the site: its rule, in JavaScript, is that of the pool."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.pages import ROOT

from ebbpool._pool import sizing
from ebbpool._pool.sizing import Asleep, Sample, Sizing, WorkerBounds

RULE = ROOT / "docs/_static/sizing.js"
SIMULATION = ROOT / "docs/_static/simulation.js"
NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(NODE is None, reason="no node here")

DECIDE = """
const { Sizing, constants } = require(process.argv[1]);
const spells = JSON.parse(require("fs").readFileSync(0, "utf8"));
const answer = spells.map(({ bounds, looks }) => {
  const sizing = new Sizing();
  return looks.map(({ rest, sample }) => {
    if (rest !== null) sizing.begin(rest);
    const grow = sizing.decide(sample, bounds);
    return [grow, sizing.tick, sizing.asks, sizing.busy, sizing.settled];
  });
});
console.log(JSON.stringify({ answer, constants }));
"""

counts = st.integers(0, 300)
shares = st.floats(0.0, 1.2)


@st.composite
def looks(draw: st.DrawFn) -> dict[str, Any]:
    workers = draw(counts)
    cpus = draw(st.integers(1, 64))
    elapsed = draw(st.sampled_from([0.0, 0.0005, 0.001, 0.004, 0.02, 0.3, 1.0]))
    sample = Sample(
        queued=draw(counts),
        taken=draw(st.integers(0, 2)),
        workers=workers,
        starting=draw(st.integers(0, workers)),
        idle=draw(st.integers(0, workers)),
        blocked=draw(st.integers(0, workers)),
        elapsed=elapsed,
        late=elapsed * draw(shares),
        cpu=elapsed * cpus * draw(shares),
        cpus=cpus,
        refused=draw(st.booleans()),
    )
    if draw(st.booleans()):
        part = st.integers(0, workers)
        sample = sample._replace(asleep=Asleep(draw(part), draw(part), draw(part), draw(part)))
    return {"rest": draw(st.none() | st.sampled_from([0.0, 0.05, 0.2])), "sample": sample}


bounds = st.builds(WorkerBounds, st.integers(0, 8), st.integers(1, 256), st.integers(0, 8))


def by_node(script: str, file: os.PathLike[str], given: str) -> Any:
    done = subprocess.run(
        [str(NODE), "-e", script, str(file)], input=given, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(bounds, st.lists(looks(), min_size=1, max_size=30)), min_size=20, max_size=40))
def test_the_rule_of_the_page_decides_as_the_pool_does(spells: list[tuple[WorkerBounds, list[dict[str, Any]]]]) -> None:
    told = json.dumps(
        [
            {
                "bounds": limits._asdict(),
                "looks": [
                    {
                        "rest": look["rest"],
                        "sample": look["sample"]._asdict()
                        | {"asleep": look["sample"].asleep and look["sample"].asleep._asdict()},
                    }
                    for look in seen
                ],
            }
            for limits, seen in spells
        ]
    )
    ours = []
    for limits, seen in spells:
        rule = Sizing()
        answers = []
        for look in seen:
            if look["rest"] is not None:
                rule.begin(look["rest"])
            grown = rule.decide(look["sample"], limits)
            answers.append([grown, rule.tick, rule.asks, rule.busy, rule.settled])
        ours.append(answers)
    assert by_node(DECIDE, RULE, told)["answer"] == ours


def test_the_constants_of_the_page_are_those_of_the_pool() -> None:
    constants = by_node(DECIDE, RULE, "[]")["constants"]
    assert constants == {
        name: value for name, value in vars(sizing).items() if name.isupper() and isinstance(value, (int, float))
    }


def test_the_page_shows_what_its_text_says() -> None:
    script = """
const { simulate } = require(process.argv[1]);
const load = Array.from({ length: 24 }, (_, i) => (i >= 4 && i < 7 ? 1200 : 40));
const machine = { seconds: 12, most: 256, keepAlive: 1, load, wait: 0.1 };
console.log(JSON.stringify([
  simulate({ ...machine, compute: 0, processors: 2, gil: true }),
  simulate({ ...machine, compute: 0.005, processors: 2, gil: true }),
  simulate({ ...machine, compute: 0.005, processors: 8, gil: false }),
]));
"""
    waiting, computing, free = by_node(script, SIMULATION, "")
    assert 110 <= waiting["peak"] <= 140 and waiting["longest"] < 0.01
    assert waiting["threads"][-1] < 10, "the threads of the burst have left"
    assert computing["peak"] < 40
    assert free["longest"] < 0.1
