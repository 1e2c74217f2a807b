"""`ab` (apache2-utils) as a client, and what it reports."""

from __future__ import annotations

import math
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.peers import program


@dataclass(frozen=True, slots=True)
class Ab:
    """What `ab` reports, and what it needed of a processor itself.

    `failed` is how often something failed (no connection, reset, another length than the first response had, another
    status); the percentiles are by per cent, in ms until a request was served.
    """

    complete: int
    failed: int
    body_bytes: int
    seconds: float
    rate: float
    percentiles: Mapping[int, float]
    cpu_seconds: float = 0.0

    def errors(self, length: int) -> int:
        """How many requests had no right response; `length` is how many bytes the body of a right one has.

        `ab` by itself takes a connection that ends without a response for a response.
        """
        return max(self.failed, math.ceil(abs(self.complete * length - self.body_bytes) / max(1, length)))


def parse_ab(text: str, cpu_seconds: float = 0.0) -> Ab:
    """Read the report that `ab` writes to stdout; ValueError if it is none, or not complete."""
    told = {"Non-2xx responses": "0"} | dict(re.findall(r"^([A-Z][\w -]+):\s+([0-9.]+)", text, re.MULTILINE))
    try:
        return Ab(
            complete=int(told["Complete requests"]),
            failed=int(told["Failed requests"]) + int(told["Non-2xx responses"]),
            body_bytes=int(told["HTML transferred"]),
            seconds=float(told["Time taken for tests"]),
            rate=float(told["Requests per second"]),
            percentiles={
                int(share): float(ms) for share, ms in re.findall(r"^\s+(\d+)%\s+([0-9.]+)", text, re.MULTILINE)
            },
            cpu_seconds=cpu_seconds,
        )
    except KeyError as missing:
        raise ValueError(f"no {missing} in what ab wrote: {text[-400:]!r}") from None


def ab(port: int, target: str, *, requests: int, concurrency: int, timeout: float = 60.0) -> Ab:
    """Run `ab` against a server on this machine, which may take, as any wait for a response, so many seconds."""
    flags = ["-q", "-r", "-n", str(requests), "-c", str(concurrency), "-s", str(max(1, round(timeout)))]
    command = [program("ab", " (Debian: apache2-utils)"), *flags, f"http://127.0.0.1:{port}{target}"]
    before = os.times()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=timeout, check=True)
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return parse_ab(done.stdout, spent)
