"""The model of the executor beside the real one."""

from __future__ import annotations

from hypothesis.stateful import run_state_machine_as_test
from support.model import ExecutorModel, profile


def test_executor_does_what_the_model_says() -> None:
    """A modest number of runs, the same every time; the stress session makes more, and others each time."""
    run_state_machine_as_test(ExecutorModel, settings=profile(50, derandomize=True, database=None))
