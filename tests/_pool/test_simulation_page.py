"""The simulation of the site: its rule, in JavaScript, is that of the pool."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from random import Random
from typing import Any

import pytest
from support.pages import ROOT

from ebbpool._pool import sizing
from ebbpool._pool.sizing import Asleep, Sample, Sizing, WorkerBounds

RULE = ROOT / "docs/_static/sizing.js"
SIMULATION = ROOT / "docs/_static/simulation.js"
NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(NODE is None or not RULE.exists(), reason="no node here, or no documentation")

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


def some_look(numbers: Random) -> dict[str, Any]:
    """Return a look at a pool; small numbers are frequent, so that the rule's comparisons meet what is equal, too."""
    most = numbers.choice([3, 12, 300])
    workers = numbers.randint(0, most)
    cpus = numbers.choice([1, 2, 2, 8, 64])
    elapsed = numbers.choice([0.0, 0.0005, 0.001, 0.001, 0.001, 0.004, 0.02, 0.3, 1.0])

    def part() -> int:
        return numbers.randint(0, workers)

    sample = Sample(
        queued=numbers.randint(0, most),
        taken=numbers.choice([0, 0, 1]),
        workers=workers,
        starting=min(part(), part()),
        idle=min(part(), part()),
        blocked=min(part(), part()),
        elapsed=elapsed,
        late=elapsed * numbers.choice([0.0, 0.0, numbers.random()]),
        cpu=elapsed * cpus * numbers.choice([0.0, 0.5, 1.0, numbers.random()]),
        cpus=cpus,
        refused=numbers.random() < 0.05,
        asleep=Asleep(part(), part(), part(), part()) if numbers.random() < 0.7 else None,
    )
    return {"rest": numbers.choice([0.0, 0.05, 0.2]) if numbers.random() < 0.1 else None, "sample": sample}


def some_bounds(numbers: Random) -> WorkerBounds:
    return WorkerBounds(numbers.choice([0, 0, 4]), numbers.choice([1, 40, 256]), numbers.choice([0, 0, 4]))


def by_node(script: str, file: os.PathLike[str], given: str) -> Any:
    done = subprocess.run(
        [str(NODE), "-e", script, str(file)], input=given, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("seed", range(4))
def test_the_rule_of_the_page_decides_as_the_pool_does(seed: int) -> None:
    numbers = Random(seed)
    spells = [(some_bounds(numbers), [some_look(numbers) for _ in range(40)]) for _ in range(500)]
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
