"""What goes to the cluster and comes back: odd errors, odd results, large arguments."""

from __future__ import annotations

import functools
import operator
import os
import threading
from typing import Any

import pytest
from distributed import Client
from support import cluster as remote
from support.common import TIMEOUT, eventually
from support.dask import Held, making, packing

from ebbpool.dask import ClusterExecutor


@pytest.mark.parametrize(
    ("fn", "args", "named"),
    [
        (threading.Lock, (), r"the result cannot be pickled: <unlocked _thread\.lock"),
        (remote.OnlyThere, (), "the result of .*OnlyThere cannot be unpickled here: .*not here"),
        (remote.fail, (remote.Strange, 1, 2), r"the error cannot be pickled: Strange\('1 and 2'\)"),
        (remote.fail, (remote.Fickle, "comes back as something else"), "the error cannot be pickled: .*as 'no error'"),
        (remote.fail, (remote.Fickle, "has no text"), "the error of .*fail cannot be unpickled here: .*'not here'"),
        (remote.be_unruly, (1,), "the error cannot be pickled: <.*Unruly object"),
        (remote.be_unruly, (2,), "the result cannot be pickled: <.*Unruly object"),
    ],
)
def test_what_cannot_be_sent_back_is_named(pool: ClusterExecutor, fn: Any, args: Any, named: str) -> None:
    with pytest.raises(TypeError, match=named) as caught:
        pool.submit(fn, *args).result(TIMEOUT)
    assert remote.Strange not in args or "in fail" in str(caught.value.__cause__)
    assert pool.submit(remote.add, 1).result(TIMEOUT) == 2


def test_an_item_whose_outcome_cannot_be_sent_or_read_spoils_no_other(pool: ClusterExecutor) -> None:
    results = pool.map_unordered(remote.be_unruly, [0, 1, 2, 3, 4], chunksize=5)
    assert next(results) == 0
    for named in ("error cannot be pickled", "result cannot be pickled", "cannot be unpickled here: .*not here"):
        with pytest.raises(TypeError, match=named):
            next(results)
    assert list(results) == [4]
    with pytest.raises(TypeError, match=r"an item for <function given .* cannot be pickled: <unlocked"):
        list(pool.map(remote.given, [1, threading.Lock()], chunksize=2))


def test_a_long_traceback_is_cut(pool: ClusterExecutor) -> None:
    error = pool.submit(remote.fail, ValueError, 10 * making.TEXT * "x").exception(TIMEOUT)
    assert error is not None and len(str(error)) == 10 * making.TEXT
    assert making.TEXT < len(str(error.__cause__)) < 2 * making.TEXT
    assert "characters are left out" in str(error.__cause__)


def parts_there(client: Client) -> int:
    """Return how many large arguments the cluster has."""
    keys = client.run_on_scheduler(lambda dask_scheduler: [str(key) for key in dask_scheduler.tasks])
    return sum(key.startswith("ebbpool-part-") for key in keys)


def test_a_large_argument_is_sent_once_and_does_not_stay(pool: ClusterExecutor, client: Client, held: Held) -> None:
    large = os.urandom(packing.LARGE + 1)
    futures = [pool.submit(remote.wait_at, held.name, large), pool.submit(remote.wait_at, held.name, data=large)]
    futures += [pool.submit(remote.wait_at, held.name, os.urandom(packing.LARGE + 1))]
    fn = functools.partial(remote.size_of, os.urandom(packing.LARGE + 1))
    results = pool.map(fn, [b"1"] * 20, chunksize=1)
    eventually(lambda: parts_there(client) == 3)
    held.open()
    assert [future.result(TIMEOUT) for future in futures] == [held.name] * 3
    assert list(results) == [packing.LARGE + 2] * 20
    assert pool.submit(remote.size_of, large, large, b"small").result(TIMEOUT) == 2 * packing.LARGE + 7
    eventually(lambda: parts_there(client) == 0)


def test_a_large_argument_is_what_it_was_at_its_submit(pool: ClusterExecutor) -> None:
    large = bytearray(packing.LARGE)
    futures = []
    for _ in range(3):
        futures.append(pool.submit(remote.append, large))
        large.append(0)
    # A call changes what is its own, and not what others get.
    futures += [pool.submit(remote.append, large) for _ in range(2)]
    assert [future.result(TIMEOUT) - packing.LARGE for future in futures] == [1, 2, 3, 4, 4]
    assert pool.submit(operator.is_, large, large).result(TIMEOUT), "the same object twice is one object there"
    assert not pool.submit(operator.is_, large, bytearray(large)).result(TIMEOUT)
