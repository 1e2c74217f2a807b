"""The event loops for the tests of streams."""

from support.loops import pytest_asyncio_loop_factories  # noqa: F401  (a hook)
