"""What `top` remembers from snapshot to snapshot, and what keys do to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.monitor import lane_of, pool_of, snapshot_of, task_of

from ebbpool._top.model import HISTORY, Model


def names(model: Model) -> list[str]:
    return [task.figures["name"] for task in model.tasks()]


def web(*tasks: dict[str, Any], **figures: Any) -> dict[str, Any]:
    return snapshot_of(pool_of("web", tasks=list(tasks), **figures))


def test_the_longest_come_first_and_s_changes_that() -> None:
    model = Model()
    model.sort_next()
    model.sort_next()
    model.update(
        snapshot_of(
            pool_of("b", tasks=[task_of("one", 1.0, thread="t3"), task_of("nine", 9.0, thread="t1")]),
            pool_of("a", tasks=[task_of("five", 5.0, thread="t2")]),
        )
    )
    assert (model.sort, names(model)) == ("pool", ["five", "nine", "one"])
    model.sort_next()
    assert (model.sort, names(model)) == ("thread", ["nine", "five", "one"])
    model.sort_next()
    assert (model.sort, names(model)) == ("time", ["nine", "five", "one"])
    model.sort_next()
    assert (model.sort, names(model)) == ("name", ["five", "nine", "one"])


def test_the_choice_stays_with_its_task() -> None:
    model = Model()
    model.move(1)
    model.toggle()
    assert (model.chosen(), model.opened) == (0, None)
    model.update(web(task_of("a", 3.0), task_of("b", 2.0), task_of("c", 1.0)))
    model.move(1)
    assert names(model)[model.chosen()] == "b"
    model.update(web(task_of("new", 9.0), task_of("a", 4.0), task_of("b", 3.0)))
    assert (model.chosen(), names(model)[model.chosen()]) == (2, "b")
    model.update(web(task_of("new", 10.0)))
    assert model.chosen() == 0
    model.move(-5)
    model.update(web(task_of("newer", 99.0), task_of("new", 11.0)))
    assert names(model)[model.chosen()] == "newer"


def test_the_stack_is_that_of_the_same_run() -> None:
    model = Model()
    model.update(web(task_of("a", 3.0)))
    model.toggle()
    model.update(web(task_of("a", 4.0, stack="new")))
    assert model.opened is not None
    assert (model.opened.figures["stack"], model.over) == ("new", False)
    model.update(web(task_of("a", 0.1, stack="of another run")))
    assert (model.opened.figures["stack"], model.over) == ("new", True)
    model.close()
    assert model.opened is None


@pytest.mark.parametrize("after", [[], [task_of("a", 0.1)], [task_of("b", 1.0)]])
def test_a_task_that_ends_before_its_stack_comes_leads_back_to_the_list(after: list[dict[str, Any]]) -> None:
    model = Model()
    model.update(web(task_of("a", 3.0), task_of("c", 1.0)))
    model.toggle()
    model.update(web(*after, task_of("c", 2.0)))
    assert (model.opened, model.notice) == (None, "a has ended")
    model.update(web(task_of("c", 3.0)))
    assert model.notice == "a has ended"
    model.toggle()
    assert model.opened is not None
    assert (model.opened.figures["name"], model.notice) == ("c", "")


@pytest.mark.parametrize("key", [lambda model: model.move(1), Model.sort_next, Model.toggle])
def test_a_notice_stays_until_the_next_key(key: Callable[[Model], None]) -> None:
    model = Model()
    model.notice = "a has ended"
    key(model)
    assert model.notice == ""


def test_what_is_done_a_second() -> None:
    model = Model()
    model.update(web(completed=10, lanes=[lane_of("x")]) | {"time": 10.0})
    assert model.rows["web",].rate is None
    model.update(web(completed=20, failed=5, cancelled=1, lanes=[lane_of("x", completed=3)]) | {"time": 12.0})
    assert model.rows["web",].rate == 8.0
    assert model.rows["web", "x"].rate == 1.5
    # A pool that is gone, and another that took its name.
    model.update(web(completed=1) | {"time": 13.0})
    assert model.rows["web",].rate == 0.0
    assert ("web", "x") not in model.rows


def test_the_history_is_bounded() -> None:
    model = Model()
    for number in range(HISTORY + 5):
        model.update(web(workers=number, queued=2 * number))
    row = model.rows["web",]
    assert (len(row.threads), row.threads[0], row.waiting[-1]) == (HISTORY, 5, 2 * (HISTORY + 4))


@pytest.mark.parametrize("pools", [[], [pool_of("a")]])
def test_decisions_of_all_pools_are_in_order(pools: list[dict[str, Any]]) -> None:
    assert Model().decisions() == []
    model = Model()
    model.update(snapshot_of(*pools))
    assert model.decisions() == []
    first = {"at": 1.0, "workers": 0, "grown": 1, "reason": "x"}
    model.update(
        snapshot_of(pool_of("a", decisions=[first, first | {"at": 3.0}]), pool_of("b", decisions=[first | {"at": 2.0}]))
    )
    assert [(at, pool) for at, pool, _ in model.decisions()] == [(1.0, "a"), (2.0, "b"), (3.0, "a")]
