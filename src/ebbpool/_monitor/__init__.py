"""Constants that the monitor, `top` and tests share: thread names, the variable, the private directory."""

from __future__ import annotations

from typing import Final

THREAD: Final = "ebbpool-monitor"
"""The name of the thread that answers."""
RESIDENT: Final = "ebbpool-monitor-resident"
"""Its name where nobody in the program has asked for it: no test has to end it."""
VARIABLE: Final = "EBBPOOL_MONITOR"
PRIVATE: Final = ".ebb-"
"""What the name of the private directory begins with in which a socket is bound.

The kernel goes on showing the name under which a socket was bound. That is how `top` recognises our sockets, and finds
their files: one directory further up.
"""
