"""`ab` (apache2-utils) as a client, and what it reports."""

from __future__ import annotations

import math
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.peers import program


@dataclass(frozen=True, slots=True)
class Ab:
    """What `ab` (apache2-utils) reports.

    Attributes:
        complete: requests that ended.
        failed: how often something failed: no connection, reset, another length than the first response had.
        non_2xx: responses with another status.
        body_bytes: of all responses together.
        seconds: how long it took.
        rate: requests per second.
        percentiles: by per cent, milliseconds until a request was served.
        cpu_seconds: what `ab` itself needed of a processor.
    """

    complete: int
    failed: int
    non_2xx: int
    body_bytes: int
    seconds: float
    rate: float
    percentiles: Mapping[int, float] = field(default_factory=dict)
    cpu_seconds: float = 0.0

    def errors(self, length: int) -> int:
        """How many requests had no right response; `length` is how many bytes the body of a right one has.

        `ab` by itself takes a connection that ends without a response for a response.
        """
        return max(
            self.failed + self.non_2xx, math.ceil(abs(self.complete * length - self.body_bytes) / max(1, length))
        )


def parse_ab(text: str, cpu_seconds: float = 0.0) -> Ab:
    """Reads the report that `ab` writes to stdout.

    Raises:
        ValueError: it is none, or not complete.
    """

    def number(name: str, default: str = "") -> str:
        found = re.search(rf"^{re.escape(name)}:\s+([0-9.]+)", text, re.MULTILINE)
        value = found[1] if found else default
        if not value:
            raise ValueError(f"no {name!r} in what ab wrote: {text[-400:]!r}")
        return value

    percentiles = re.findall(r"^\s+([0-9]+)%\s+([0-9.]+)", text, re.MULTILINE)
    return Ab(
        complete=int(number("Complete requests")),
        failed=int(number("Failed requests")),
        non_2xx=int(number("Non-2xx responses", "0")),
        body_bytes=int(number("HTML transferred")),
        seconds=float(number("Time taken for tests")),
        rate=float(number("Requests per second")),
        percentiles={int(share): float(milliseconds) for share, milliseconds in percentiles},
        cpu_seconds=cpu_seconds,
    )


def _children_cpu_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


def ab(
    port: int, target: str, *, requests: int, concurrency: int, keep_alive: bool = False, timeout: float = 60.0
) -> Ab:
    """Runs `ab` against a server on this machine.

    Args:
        port: where it listens.
        target: what is asked for, from the slash on.
        requests: how many in all.
        concurrency: how many at a time.
        keep_alive: whether connections are used again.
        timeout: seconds that the whole run, and any wait for a response, may take.

    Raises:
        Unavailable: `ab` is not installed.
        RuntimeError: it gave up, or took longer than `timeout`.
    """
    flags = ["-q", "-r", "-n", str(requests), "-c", str(concurrency), "-s", str(max(1, round(timeout)))]
    command = [
        program("ab", " (Debian: apache2-utils)"),
        *flags,
        *(["-k"] if keep_alive else []),
        f"http://127.0.0.1:{port}{target}",
    ]
    before = _children_cpu_seconds()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"ab did not end within {timeout:g} s") from None
    if done.returncode:
        raise RuntimeError(f"ab ended with status {done.returncode}: {done.stderr.strip()[-400:]}")
    return parse_ab(done.stdout, _children_cpu_seconds() - before)
