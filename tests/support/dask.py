"""What the tests of the executor over a cluster see of its inside."""

from ebbpool._dask import joining, link, pace, packing
from ebbpool._dask import remote as making

__all__ = ["joining", "link", "making", "pace", "packing"]
