"""A Dask graph of blocking calls, on a lane of a pool that other code uses too.

Start it with::

    python -m pip install dask
    python dask_files.py FOLDER
"""

import sys
from pathlib import Path

import dask

from ebbpool import AdaptiveExecutor


@dask.delayed
def words(path: Path) -> int:
    """Count the words of a file."""
    return len(path.read_text(encoding="utf-8", errors="replace").split())


def main(folder: str) -> None:
    """Print how many words the text files of a folder have."""
    counts = [words(path) for path in sorted(Path(folder).glob("*.txt"))]
    with AdaptiveExecutor(thread_name_prefix="app") as pool:
        # Dask sends as many calls at a time as the lane lets run.
        reading = pool.lane("dask", limit=32)
        with dask.config.set(scheduler="threads", pool=reading):
            (total,) = dask.compute(sum(counts))
        print(f"{total} words in {len(counts)} files, in {pool.stats().submitted} calls")


if __name__ == "__main__":
    main(sys.argv[1])
