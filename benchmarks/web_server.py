"""`ab` asks for a static page, and for one that takes computing: what do threads, a pool and processes serve?"""

from __future__ import annotations

import tempfile
import urllib.request
from pathlib import Path

from benchmarks import processors
from benchmarks.engine.model import Column, Params, Question, Samples, Settings, Target, Variant
from benchmarks.load.ab import ab
from benchmarks.load.serving import serving
from benchmarks.peers.peer import Peer
from benchmarks.servers.web import BACKLOG, COMPUTING, PAGE, computed, write_page

try:
    import resource
except ImportError:
    resource = None  # type: ignore[assignment]  # not on Windows

_TARGETS = {"static": PAGE, "computing": COMPUTING}
_LIGHT = {"page": "static", "requests": 1000, "at a time": 100}
_HEAVY = {"page": "static", "requests": 10_000, "at a time": 1000}
_COMPUTING = {"page": "computing", "requests": 1000, "at a time": 100}
_FILES = 4096
_SERVERS = {
    "web-threading": "web threading",
    "web-pool": "web pool",
    "web-pool-pure": "web pool",
    "web-prefork": "web prefork",
    "web-prefork-reuse-port": "web prefork-reuse-port",
    "web-nginx": "web nginx",
}
_ONE = "web-pool web-pool-pure"
_MANY = "web-prefork web-prefork-reuse-port"
_TIMES = 1.6


def _allow_files(count: int) -> None:
    """Lets this process, and whatever it starts, have so many files open, if it may."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _check(port: int, target: str, expected: bytes) -> None:
    """`ab` looks at lengths only: somebody has to read the page."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{target}", timeout=30.0) as response:
        if response.read() != expected:
            raise RuntimeError(f"a wrong page at {target}")


def measure(peer: Peer, params: Params) -> Samples:
    _allow_files(_FILES)
    target = _TARGETS[params["page"]]
    requests = params["requests"] // params["divisor"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_page(folder)
        expected = (folder / PAGE[1:]).read_bytes() if target == PAGE else computed()
        with serving(_SERVERS[peer.base], "--directory", name) as found:
            _check(found.port, target, expected)
            before = found.cpu_seconds(family=True)
            done = ab(found.port, target, requests=requests, concurrency=params["at a time"] // params["divisor"])
            used = found.cpu_seconds(family=True) - before
            _check(found.port, target, expected)
    samples: Samples = {
        "rate": [done.rate],
        "errors": [done.errors(len(expected)) + requests - done.complete],
        "p50": [done.percentiles[50]],
        "p99": [done.percentiles[99]],
        "client": [done.cpu_seconds / done.seconds * 100],
    }
    if used:
        samples["cpu"] = [used / requests * 1e6]
    return samples


def variants(peer: str, settings: Settings) -> list[Variant]:
    return [_LIGHT, _HEAVY] if peer == "web-nginx" else [_LIGHT, _HEAVY, _COMPUTING]


QUESTION = Question(
    title="A web server under ab, one connection per request",
    method="static: a page of 4 kB from a file, by http.server's own handler (nginx: by nginx); computing: some "
    f"milliseconds of bytecode; every listener has a backlog of {BACKLOG} (http.server's own 5 would have the kernel "
    "drop connections); prefork and nginx: a process per processor; ab looks at status and length, the page itself is "
    "read before and after; µs of a processor: the server's, of all its processes",
    columns=(
        Column("rate", "requests/s", 0, more=True),
        Column("errors", "failed", 0, ratio=False, worst=True),
        Column("p50", "p50, ms", 0, ratio=False),
        Column("p99", "p99, ms", 0),
        Column("cpu", "µs of a processor a request", 0),
        Column("client", "% of a processor, ab", 0, ratio=False),
    ),
    peers=tuple(_SERVERS),
    variants=variants,
    sizes=lambda quick: {"divisor": 10 if quick else 1},
    measure=measure,
    targets=(
        Target("no failed request", f"{_ONE} {_MANY}", "errors", 0),
        *(
            Target("ahead of a thread per request", f"{_ONE} {_MANY}", "rate", 1.0, where, "web-threading")
            for where in (_LIGHT, _HEAVY)
        ),
        *(
            Target(f"at least {_TIMES}x one process", _MANY, "rate", _TIMES, _COMPUTING, "web-pool", pinned=False)
            for _ in processors()[1:2]
        ),
    ),
    floor="nginx, which runs no Python",
    limits="the handler of http.server, which is Python under a GIL: only more processes make it quicker",
)
