"""Whole loads on a simulated machine: how soon the tasks are done, and with how many workers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from support.simulation import FREE, GIL, Machine, Simulation, Task, compute, simulate, sleep

from ebbpool._testing.rules import CREW, TICK

MANY = Machine(cpus=16)

both = pytest.mark.parametrize("machine", [GIL, FREE], ids=["gil", "free"])
everywhere = pytest.mark.parametrize("machine", [GIL, FREE, MANY], ids=["gil", "free", "many"])


def sleeps(count: int, seconds: float) -> list[Task]:
    return [sleep(seconds) for _ in range(count)]


def computes(count: int, seconds: float) -> list[Task]:
    return [compute(seconds) for _ in range(count)]


def mixed() -> list[Task]:
    return [sleep(0.05) if number % 2 else compute(0.005) for number in range(200)]


@both
def test_a_cold_burst_of_blocking_tasks_runs_within_milliseconds(machine: Machine) -> None:
    result = simulate(machine, sleeps(200, 0.05))
    starting = 200 * (machine.start_cost + (machine.arrive_cost if machine.gil else 0.0))
    assert result.peak == 200
    assert max(result.waits) < starting + 10 * TICK
    assert result.looks <= 9, "one doubling a look"
    assert result.seconds < 0.08


@both
@pytest.mark.parametrize("count", [2, 7, 50])
def test_a_small_burst_gets_no_more_workers_than_tasks(machine: Machine, count: int) -> None:
    result = simulate(machine, sleeps(count, 0.05))
    assert result.peak == count


@both
def test_a_steady_load_is_served_with_hardly_more_workers_than_it_needs(machine: Machine) -> None:
    result = simulate(machine, sleeps(300, 0.005), every=0.001)
    assert result.peak <= 8, "five are needed"
    assert max(result.waits) < 0.005
    assert result.seconds < 0.31


def test_computing_tasks_with_the_gil_get_few_workers_and_lose_no_time() -> None:
    result = simulate(GIL, computes(200, 0.005), max_workers=64)
    assert result.peak <= 12
    assert result.seconds < 1.01


def test_computing_tasks_use_every_processor_of_a_large_machine() -> None:
    result = simulate(MANY, computes(800, 0.02), max_workers=64)
    assert 16 <= result.peak <= 48
    assert result.seconds < 1.1 * 800 * 0.02 / 16


@both
def test_trivial_tasks_need_very_few_workers(machine: Machine) -> None:
    result = simulate(machine, computes(20_000, 1e-6), max_workers=32)
    assert result.peak <= 4
    assert result.seconds < 0.022


def test_a_flood_of_short_calls_is_left_to_a_few_workers_with_the_gil() -> None:
    """Each reads, computes and writes, for 25 µs of the GIL; they come 80 at once, and now and then more."""
    simulation = Simulation(GIL)
    for batch in range(60):
        burst = [Task((5e-6, -3e-6, 10e-6, -3e-6, 10e-6)) for _ in range(240 if batch % 10 == 0 else 80)]
        simulation.submit(*burst, at=batch * 0.0036)
    result = simulation.run()
    assert result.peak <= 24
    assert result.seconds < 0.24


def test_a_mixed_load_without_the_gil_is_near_the_time_that_its_computing_takes() -> None:
    result = simulate(FREE, mixed())
    assert result.peak <= 40
    assert result.seconds < 0.4


@everywhere
def test_a_quick_task_behind_computing_ones_waits_no_longer_than_they_take(machine: Machine) -> None:
    result = simulate(machine, [*computes(50, 0.02), sleep(0.001)])
    assert result.waits[-1] < 50 * 0.02
    assert result.peak <= 30


@everywhere
def test_growth_goes_on_behind_tasks_that_compute_for_seconds(machine: Machine) -> None:
    simulation = Simulation(machine)
    simulation.submit(*computes(40, 0.5))
    timeline = simulation.run().timeline
    starts = [now for (_, before), (now, workers) in pairwise(timeline) if workers > before]
    gaps = [late - early for early, late in pairwise(starts)]
    # With the GIL a look itself comes as late as every computing thread in its turn makes it.
    slack = 40 * machine.quantum
    assert max(gaps) < 2.0 + slack, "what a few workers compute before they take another task"
    assert len(starts) >= machine.cpus + CREW


def test_blocked_tasks_are_served_while_the_main_thread_keeps_the_gil() -> None:
    simulation = Simulation(GIL)
    simulation.compute(30.0)
    simulation.submit(*sleeps(1000, 0.05))
    result = simulation.run()
    assert result.seconds < 3.0, "eight workers would take over six seconds"
