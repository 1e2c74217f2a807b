"""The model of the executor again, for longer and with other examples each time."""

from __future__ import annotations

from hypothesis.stateful import run_state_machine_as_test
from stress_harness import SECONDS, rounds
from support.model import ExecutorModel, profile


def test_executor_does_what_the_model_says_for_longer() -> None:
    for _ in rounds(4 * SECONDS):
        run_state_machine_as_test(ExecutorModel, settings=profile(40, database=None, print_blob=True))
