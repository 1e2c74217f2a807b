"""``python -m ebbpool``."""

from __future__ import annotations

import sys

from ebbpool._cli.command import main

if __name__ == "__main__":
    sys.exit(main())
