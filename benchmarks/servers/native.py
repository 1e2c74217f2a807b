"""The echo servers that are no Python: `python -m benchmarks.servers.native go` or `java` becomes that program."""

from __future__ import annotations

import os
import sys

from benchmarks.native import command

if __name__ == "__main__":
    found = [*command(sys.argv[1]), *sys.argv[2:]]
    os.execv(found[0], found)
