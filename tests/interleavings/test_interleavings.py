"""Each model ends well in every order of steps, and each mutant does not.

The folder runs only when it is named: ``pytest tests/interleavings``. ``EBBPOOL_ORDERS`` says how many random orders of
each model are run, from ``EBBPOOL_ORDERS_SEED`` on, and ``EBBPOOL_ORDERS_PAIRS=1`` adds those in which threads are held
at any two meetings. ``EBBPOOL_ORDER='{814: 0}'`` repeats what a failure has printed, of the model that ``-k`` chooses.
"""

from __future__ import annotations

import ast
import gc
import os
import sys
from collections.abc import Iterator

import pytest
from models import MODELS
from mutants import MUTANTS, Mutant
from support import interleaved

RANDOMLY = int(os.environ.get("EBBPOOL_ORDERS", "50"))
SEED = int(os.environ.get("EBBPOOL_ORDERS_SEED", "1"))
PAIRS = os.environ.get("EBBPOOL_ORDERS_PAIRS", "") not in ("", "0")
ORDER = ast.literal_eval(os.environ.get("EBBPOOL_ORDER", "None"))

pytestmark = [
    pytest.mark.skipif(sys.version_info < (3, 13), reason="threading of older Pythons has other private parts"),
    pytest.mark.timeout(3600 if PAIRS else 180),
]


@pytest.fixture(autouse=True)
def collected_between_runs() -> Iterator[None]:
    """Have the garbage collector run where it cannot change what the next step is."""
    gc.disable()
    yield
    gc.enable()


def failing(name: str, *patches: tuple[str, str, str], pairs: bool = PAIRS) -> interleaved.Run | None:
    """Return the first run of a model that fails, with its story, or None."""
    model = MODELS[name]
    with interleaved.engine(*patches) as ebbpool, interleaved.watched():
        for number, run in enumerate(interleaved.explore(model, ebbpool, RANDOMLY, SEED, pairs)):
            if run.failure is not None:
                break
            if number % 200 == 0:
                gc.collect()
        else:
            return None
    # What has failed has left the engine behind in the middle of something.
    with interleaved.engine(*patches) as ebbpool, interleaved.watched():
        for _ in range(2):
            interleaved.run(model, ebbpool, {})
        return interleaved.run(model, ebbpool, run.schedule, tells=True)


@pytest.mark.parametrize("name", MODELS)
def test_it_ends_well_in_every_order_of_steps(name: str) -> None:
    if ORDER is None:
        run = failing(name)
    else:
        with interleaved.engine() as ebbpool, interleaved.watched():
            for _ in range(2):
                interleaved.run(MODELS[name], ebbpool, {})
            run = interleaved.run(MODELS[name], ebbpool, ORDER, tells=True)
    if run is not None and (run.failure or ORDER is None):
        story = "\n".join(run.story)
        pytest.fail(f"EBBPOOL_ORDER='{run.schedule}' -k {name}\n{run.failure}\n{story}", pytrace=False)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_finds(mutant: Mutant) -> None:
    run = failing(mutant.model, mutant[2:], pairs=False)
    assert run is not None, "no order of steps shows it"
    assert run.failure, f"it is not there again in {run.schedule}"


def test_what_happens_depends_on_the_schedule_alone() -> None:
    model = MODELS["room_against_cancel"]
    with interleaved.engine() as ebbpool, interleaved.watched():
        plain = [interleaved.run(model, ebbpool, {}, counts=True) for _ in range(3)][-1]
        (step, _), *_ = plain.choices[len(plain.choices) // 2 :]
        one, other = (interleaved.run(model, ebbpool, {step: 0}, tells=True, counts=True) for _ in range(2))
        assert one.story
        assert (one.choices, len(one.story)) == (other.choices, len(other.story))
