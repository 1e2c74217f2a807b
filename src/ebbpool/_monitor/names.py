"""What others have to know of the monitor, without importing it."""

from __future__ import annotations

import threading
from typing import Final

THREAD: Final = "ebbpool-monitor"
"""The name of the thread that answers."""
VARIABLE: Final = "EBBPOOL_MONITOR"

asked = False
"""Whether this process has looked at the environment."""
residents: set[threading.Thread] = set()
"""The threads that listen although nobody in the program has asked for it: no test has to end them."""
