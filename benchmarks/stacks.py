"""What do 1, 200 and 2,000 waiting workers take of memory, by the size of their stacks?"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from benchmarks.engine.model import Column, Params, Question, Samples, Target, always
from benchmarks.load.serving import Server
from benchmarks.peers import Unavailable, package
from benchmarks.peers.peer import Peer

_COUNTS = (1, 200, 2000)
_KIB = 1024
_STACKS = {"default": None, "1 MiB": 1024 * _KIB, "256 KiB": 256 * _KIB, "64 KiB": 64 * _KIB}
_PATIENCE_SECONDS = 60.0


def _adaptive(workers: int, stack: int | None) -> Executor:
    executor: Executor = package("ebbpool").AdaptiveExecutor(workers, thread_stack_size=stack)
    return executor


def _stdlib(workers: int, stack: int | None) -> Executor:
    threading.stack_size(stack or 0)
    return ThreadPoolExecutor(workers)


def _memory() -> tuple[int, int]:
    """The kB of this process, resident and virtual."""
    process = Server(0, os.getpid())
    found = process.memory(), process.virtual()
    if not all(found):
        raise Unavailable("no /proc here")
    return found


def measure(peer: Peer, params: Params) -> Samples:
    build, count = _stdlib if peer.base == "stdlib" else _adaptive, params["waiting"]
    running, release = threading.Semaphore(0), threading.Event()

    def wait() -> None:
        running.release()
        release.wait()

    usual = threading.stack_size()
    with build(count, _STACKS[params["stack"]]) as pool:
        before = _memory()
        try:
            futures: list[Any] = [pool.submit(wait) for _ in range(count)]
            for number in range(count):
                if not running.acquire(timeout=_PATIENCE_SECONDS):
                    raise RuntimeError(f"only {number} of {count} tasks run after {_PATIENCE_SECONDS:g} s more")
            after = _memory()
        finally:
            release.set()
            threading.stack_size(usual)
        for future in futures:
            future.result()
    return {
        "resident": [(after[0] - before[0]) / count],
        "virtual": [(after[1] - before[1]) / count],
        "resident_all": [after[0] / _KIB],
        "virtual_all": [after[1] / _KIB],
    }


QUESTION = Question(
    title="The memory of waiting workers, by stack size",
    method="every worker waits in a task that does nothing else; a worker: by how much the process grew, divided by "
    "the workers; resident: of a stack only what has been touched; virtual: with what the C library reserves for "
    "threads to allocate from (64 MB each, for 8 a processor, in glibc); ThreadPoolExecutor has no such setting: there "
    "it is threading.stack_size, for the whole interpreter; default: what the system gives (often 8 MiB)",
    columns=(
        Column("resident", "kB resident a worker", 1),
        Column("virtual", "kB virtual a worker", 0),
        Column("resident_all", "MB resident in all", 1, ratio=False),
        Column("virtual_all", "MB virtual in all", 0, ratio=False),
    ),
    peers=("ebbpool", "ebbpool-pure", "stdlib"),
    variants=always(*({"waiting": count, "stack": stack} for count in _COUNTS for stack in _STACKS)),
    sizes=lambda quick: {},
    measure=measure,
    targets=(
        Target(
            "64 KiB stacks: at most a tenth of the address space",
            "ebbpool ebbpool-pure",
            "virtual",
            0.1,
            {"waiting": _COUNTS[-1], "stack": "64 KiB"},
            "",
            {"stack": "default"},
        ),
    ),
    rounds_factor=0.4,
    floor="a page or two of stack that a waiting thread has touched",
    limits="the interpreter and the C library: the pool only says how large the stacks may become",
)
