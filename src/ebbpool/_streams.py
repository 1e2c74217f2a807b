"""Standard output and standard error that cannot be written to: nobody reads them any more, or the disk is full."""

from __future__ import annotations

import contextlib
import os
from typing import TextIO


def settle(*streams: TextIO | None) -> None:
    """Writes what `streams` hold back, and forgets what of it cannot be written.

    Otherwise the interpreter tries once more at its end, fails, and makes the exit status 120; and multiprocessing
    tries before it starts a process, fails, and starts none.
    """
    for stream in streams:
        if stream is not None:
            try:
                stream.flush()
            except (OSError, ValueError):
                with contextlib.suppress(OSError, ValueError):
                    _forget(stream)


def _forget(stream: TextIO) -> None:
    number = stream.fileno()
    inheritable = os.get_inheritable(number)
    kept = os.dup(number)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), number, inheritable)
        try:
            stream.flush()
        finally:
            os.dup2(kept, number, inheritable)
    finally:
        os.close(kept)
