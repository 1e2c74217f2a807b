"""The echo server in Go: `python -m benchmarks.servers.go echo` becomes that program."""

from __future__ import annotations

import os
import sys

from benchmarks.peers.go import command

if __name__ == "__main__":
    os.execv(command(), [command(), *sys.argv[1:]])
