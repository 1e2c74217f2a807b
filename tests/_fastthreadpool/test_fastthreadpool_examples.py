"""`ebbpool.fastthreadpool`: an example of its namesake, and the migration page."""

from __future__ import annotations

import re
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pytest
from support.common import eventually, output_of

from ebbpool import fastthreadpool

PAGE = Path(__file__).parents[2] / "docs" / "migrating.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def worker(value: Any) -> Any:
    return value


def test_the_more_complex_example() -> None:
    pool = fastthreadpool.Pool(result_id=True)
    for i in range(100):
        jobid = pool.submit(lambda *args: args, "foo1", i)
    pool.submit_first(worker, "foo2")
    cancelled = pool.cancel(jobid)
    pool.submit_later(0.01, worker, "foo3")
    pool.schedule(0.01, worker, "foo4")
    eventually(lambda: len(pool.done) >= 105)
    pool.cancel(None, True)
    pool.shutdown()
    values = [value for _, value in pool.done]
    jobs = {value[1] for value in values if isinstance(value, tuple)}
    assert jobs == set(range(99 if cancelled else 100))
    assert values.count("foo2") == values.count("foo3") == 1
    assert not pool.failed


def test_the_migration_page_shows_the_same_thing_twice() -> None:
    old, new, thread_pool, ours, standard, *_ = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert output_of(old) == output_of(new)
    assert output_of(thread_pool) == output_of(ours) == ["9 [0, 1, 4, 9, 16] [8, 9]", "[0, 1, 4, 9, 16]"]
    assert sorted(output_of(standard)) == ["ebb 3", "flood 5"]


@pytest.mark.parametrize("pool", [fastthreadpool.Pool, ThreadPool])
def test_the_migration_page_names_every_public_call(pool: type) -> None:
    text = PAGE.read_text(encoding="utf-8")
    names = [name for name in dir(pool) if not name.startswith("_") and name != "Process"]
    assert len(names) > 10
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []
