"""The interpreter's switch interval, which is shorter while pools hold workers back because the GIL is short."""

from __future__ import annotations

import sys
from typing import Final

SHORT: Final = 0.001003  # seconds; an odd figure: told from what somebody else has set


class SwitchInterval:
    """Shortens the switch interval for as long as a pool wants that. Used by one thread, and by a forked child."""

    def __init__(self) -> None:
        self._wanted_by: set[object] = set()
        self._before = 0.0  # what was there before; 0 where nothing was changed

    def want(self, pool: object, shorter: bool) -> None:
        """Note whether `pool` wants it shorter. The first one shortens it, the last one puts back what was there."""
        if shorter and not self._wanted_by:
            before = sys.getswitchinterval()
            if before > SHORT:
                # In this order, as another thread may fork between the two.
                self._before = before
                sys.setswitchinterval(SHORT)
        if shorter:
            self._wanted_by.add(pool)
        elif pool in self._wanted_by:
            self._wanted_by.discard(pool)
            if not self._wanted_by:
                self.restore()

    def restore(self) -> None:
        """Put back what was there, unless somebody else has set another since; no pool wants it shorter."""
        self._wanted_by.clear()
        before, self._before = self._before, 0.0
        # The interpreter keeps whole microseconds.
        if before > 0.0 and abs(sys.getswitchinterval() - SHORT) < 1.5e-6:
            sys.setswitchinterval(before)


interval = SwitchInterval()
