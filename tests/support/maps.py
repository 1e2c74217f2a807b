"""What the tests of maps share: both ways to hold the items of a claim, and how far large claims are."""

from __future__ import annotations

import pytest

from ebbpool._work import map_ledger

FAR = 2_000
"""Trivial items after which claims are large."""


@pytest.fixture(params=[True, False], ids=["iterators", "deques"])
def iterators(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Both ways to hold the items of a claim, where the interpreter allows both."""
    if request.param and not map_ledger.ITERATORS:
        pytest.skip("list iterators do not exclude each other here")
    monkeypatch.setattr(map_ledger, "ITERATORS", request.param)
    return bool(request.param)
