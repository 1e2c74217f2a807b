"""The cluster case's server: a light endpoint and a heavy one, whose calls may spill to a Dask cluster."""

from __future__ import annotations

import argparse
import asyncio
from concurrent.futures import Executor

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import ebbpool
from benchmarks.demo.serving import loop_factory, serve

THREADS = 2
SPILL_AFTER = 0.1
_STEPS = 400_000


def heavy(seed: int) -> int:
    """Return a number that pure Python takes some tens of milliseconds to find; the same for the same seed."""
    value = seed
    for _ in range(_STEPS):
        value = (value * 1_103_515_245 + 12_345) % 2_147_483_648
    return value


def make_app(pool: ebbpool.AdaptiveExecutor) -> Starlette:
    """Return the app. The mark on `heavy` changes nothing in a pool that has nowhere to spill to."""
    # By its importable name: this module runs as __main__ here, and not in the cluster's workers.
    from benchmarks.demo import cluster_app

    marked = ebbpool.spillable(cluster_app.heavy)

    async def light(_: Request) -> PlainTextResponse:
        return PlainTextResponse(str(await pool.run(int)))

    async def weigh(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(await pool.run(marked, int(request.query_params["seed"]))))

    return Starlette(routes=[Route("/light", light), Route("/heavy", weigh)])


async def main(scheduler: str) -> None:
    """Serve until the parent lets go."""
    from benchmarks.demo import cluster_app

    there: Executor | None = None
    if scheduler:
        from ebbpool.dask import ClusterExecutor

        there = ClusterExecutor(scheduler)
        # The first call of a worker imports what it needs.
        await asyncio.gather(*(there.run(cluster_app.heavy, seed) for seed in range(there._max_workers)))
    after = SPILL_AFTER if there is not None else None
    pool = ebbpool.AdaptiveExecutor(THREADS, thread_name_prefix="web", spill=there, spill_after=after)

    def figures() -> dict[str, object]:
        stats = pool.stats()
        names = ("running", "queued", "away", "spilled", "spill_returned")
        return {name: getattr(stats, name) for name in names}

    await serve(make_app(pool), figures)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo.cluster_app")
    parser.add_argument("--scheduler", default="")
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main(parser.parse_args().scheduler))
