"""The monitor: what `EBBPOOL_MONITOR` asks for, without importing what listens before it is needed."""

from __future__ import annotations

import logging
import os

from ebbpool._monitor import names


def from_environment() -> None:
    """Listen at the path that `EBBPOOL_MONITOR` names, if it does; only the first call in a process looks.

    A path that cannot be used is logged, and the program goes on.
    """
    if names.asked:
        return
    names.asked = True
    path = os.environ.get(names.VARIABLE)
    if not path:
        return
    try:
        from ebbpool._monitor.listener import Listener

        Listener(path, resident=True)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        logging.getLogger("ebbpool.monitor").warning("%s=%s is not used: %s", names.VARIABLE, path, error)
