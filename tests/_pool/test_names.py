"""The names of pools, and the lists of pools and lanes."""

from __future__ import annotations

from support.common import Background

import ebbpool
from ebbpool import AdaptiveExecutor


def test_a_pool_is_named_after_its_prefix() -> None:
    with AdaptiveExecutor(thread_name_prefix="web") as pool:
        assert pool.name == "web" == pool.stats().name
        assert "'web'" in repr(pool)


def test_no_two_live_pools_share_a_name() -> None:
    with AdaptiveExecutor(thread_name_prefix="twin") as first, AdaptiveExecutor(thread_name_prefix="twin") as second:
        assert (first.name, second.name) == ("twin", "twin-2")
        with AdaptiveExecutor(thread_name_prefix="twin-2") as third:
            assert third.name == "twin-2-2"
    with AdaptiveExecutor(thread_name_prefix="twin") as pool:
        assert pool.name == "twin"


def test_names_given_at_once_differ() -> None:
    pools: list[AdaptiveExecutor] = []

    def make() -> None:
        for _ in range(50):
            pools.append(AdaptiveExecutor(thread_name_prefix="many"))

    for maker in [Background(make) for _ in range(4)]:
        maker.join()
    assert len({pool.name for pool in pools}) == 200


def test_live_pools_are_listed_oldest_first() -> None:
    before = ebbpool.pools()
    with AdaptiveExecutor() as first, AdaptiveExecutor() as second:
        assert [pool for pool in ebbpool.pools() if pool not in before] == [first, second]
    assert first not in ebbpool.pools() and second not in ebbpool.pools()


def test_lanes_are_listed_oldest_first() -> None:
    with AdaptiveExecutor() as pool:
        assert pool.lanes() == []
        first, second = pool.lane("b", limit=1), pool.lane("a", limit=2)
        assert pool.lanes() == [first, second]
        assert [lane.stats().name for lane in pool.lanes()] == ["b", "a"]
        first.shutdown()
        assert pool.lanes() == [second]


def test_stats_tell_the_limits() -> None:
    with AdaptiveExecutor(8, min_workers=2, max_queue=100) as pool:
        stats = pool.stats()
        assert (stats.min_workers, stats.max_workers, stats.max_queue) == (2, 8, 100)
        pool.resize(max_workers=9, max_queue=None)
        stats = pool.stats()
        assert (stats.max_workers, stats.max_queue) == (9, None)
