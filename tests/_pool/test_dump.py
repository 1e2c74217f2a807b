"""The text that tells what all pools do."""

from __future__ import annotations

import asyncio
import io
import re
from typing import Any

import pytest
from support.common import STACKS, Gate

from ebbpool import AdaptiveExecutor
from ebbpool.monitor import dump


def hang(gate: Gate) -> None:
    gate()


class Odd(AdaptiveExecutor):
    def stats(self) -> Any:
        raise RuntimeError("not today")


def test_it_tells_of_pools_lanes_tasks_and_of_what_nobody_waits_for() -> None:
    async def give_up(pool: AdaptiveExecutor, gate: Gate) -> None:
        call = pool.run(hang, gate)
        await asyncio.to_thread(gate.await_begun)
        call.cancel()

    out = io.StringIO()
    with AdaptiveExecutor(2, thread_name_prefix="web") as pool, Gate() as gate:
        lane = pool.lane("reports", limit=1)
        for _ in range(2):
            lane.submit(hang, gate)
        gate.await_begun()
        asyncio.run(give_up(pool, gate))
        pool.within(0.001).submit(int).exception()
        inner = pool.submit(int)
        dump(out)
        text = out.getvalue()
        gate.open()
        inner.result()
    line = next(line for line in text.splitlines() if line.startswith("pool 'web': "))
    assert "2 of at most 2 threads (0 idle, 2 running, 0 of these blocked, 1 abandoned), 1 waiting, the oldest" in line
    assert "; 1 waited for too long and were not run" in line
    assert "  lane 'reports': 1 of at most 1 running, 1 waiting\n" in text
    assert text.count(f"{__name__}.hang") == 2 and text.count(f"{__name__}.hang, lane 'reports', running for") == 1
    assert re.search(r"web_1: .*hang, running for .* s, abandoned: nobody waits for it\n", text)
    assert text.count("in hang\n" if STACKS else "(no stack") == 2
    last = text.splitlines()[-1]
    assert last.startswith("threads of no pool: ") and "'MainThread'" in last and "web" not in last


def test_a_pool_that_waits_for_its_last_task_is_shown_and_an_odd_one_does_not_hide_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with (
        Odd(thread_name_prefix="odd"),
        AdaptiveExecutor(thread_name_prefix="idle"),
        AdaptiveExecutor(thread_name_prefix="ending") as pool,
        Gate() as gate,
    ):
        gate.hold(pool)
        pool.shutdown(wait=False)
        dump()
    text = capsys.readouterr().err
    assert text.startswith("ebbpool: ")
    assert "pool 'odd': cannot be looked at: RuntimeError('not today')\n" in text
    assert "pool 'idle': 0 of at most 256 threads" in text
    assert "pool 'ending' (shut down): 1 of at most 256 threads" in text


def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match="file must be an open text file or None, not 'path'"):
        dump("path")  # type: ignore[arg-type]
