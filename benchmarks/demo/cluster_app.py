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

from .control import Link, loop_factory
from .heavy import heavy
from .serving import arguments, serve

THREADS = 2
SPILL_AFTER = 0.1


def make_app(pool: ebbpool.AdaptiveExecutor) -> Starlette:
    """Return the app. The mark on `heavy` changes nothing in a pool that has nowhere to spill to."""
    marked = ebbpool.spillable(heavy)

    async def light(_: Request) -> PlainTextResponse:
        return PlainTextResponse(str(await pool.run(int)))

    async def weigh(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(await pool.run(marked, int(request.query_params["seed"]))))

    return Starlette(routes=[Route("/light", light), Route("/heavy", weigh)])


async def main(options: argparse.Namespace) -> None:
    """Serve until the parent lets go."""
    link = await Link.to_parent(options.control)
    there: Executor | None = None
    if options.scheduler:
        from ebbpool.dask import ClusterExecutor

        there = ClusterExecutor(options.scheduler)
        # The first call of a worker imports what it needs.
        await asyncio.gather(*(there.run(heavy, seed) for seed in range(there._max_workers)))
    after = SPILL_AFTER if there is not None else None
    pool = ebbpool.AdaptiveExecutor(THREADS, thread_name_prefix="web", spill=there, spill_after=after)

    def figures() -> dict[str, int]:
        stats = pool.stats()
        names = ("running", "queued", "away", "spilled", "spill_returned")
        return {name: getattr(stats, name) for name in names}

    try:
        await serve(make_app(pool), link, THREADS, figures)
    finally:
        pool.shutdown()
        if there is not None:
            there.shutdown()


if __name__ == "__main__":
    parser = arguments("benchmarks.demo.cluster_app")
    parser.add_argument("--scheduler", default="")
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main(parser.parse_args()))
