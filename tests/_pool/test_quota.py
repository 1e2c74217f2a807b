"""The container's CPU quota: read from trees such as kernels and container runtimes make them."""

from __future__ import annotations

import errno
import os
import sys
import threading
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import seams
from support.common import Gate

from ebbpool import AdaptiveExecutor, _interpreter

INTERVAL, cpu_quota = seams.quota.INTERVAL, seams.quota.cpu_quota


def make(root: Path, groups: str, files: dict[str, str]) -> int | None:
    """Say in which groups the process is, and what is in files below their mount; return the quota."""
    for path, text in {"proc/self/cgroup": groups, **files}.items():
        file = root / ("" if path.startswith("proc") else "sys/fs/cgroup") / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return cpu_quota(str(root))


def v1(group: str, quota: int, mount: str = "cpu,cpuacct") -> dict[str, str]:
    folder = f"{mount}/{group}"
    return {f"{folder}/cpu.cfs_quota_us": f"{quota}\n", f"{folder}/cpu.cfs_period_us": "100000\n"}


def v2(limits: dict[str, str]) -> dict[str, str]:
    return {f"./{group}/cpu.max": f"{limit}\n" for group, limit in limits.items()}


DOCKER = "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n3:cpuset:/\n"
LIMITS = {"max 100000": None, "100000 100000": 1, "150000 100000": 2, "1000 100000": 1, "200000 50000": 4}
MALFORMED = ["", "max", "100000", "x 100000", "100000 x", "0 100000", "-5 100000", "100000 0", "1 2 3", "1.5 2", "\0"]
OUTSIDE = ["/elsewhere/xyz", "/../../elsewhere", "/docker/abcdef", "/docker/abc/../.."]
TREES: list[tuple[str, dict[str, str], int | None]] = [
    # A namespaced container.
    *(("0::/\n", v2({"": limit}), quota) for limit, quota in LIMITS.items()),
    # The least of all groups above counts.
    ("0::/a/b\n", v2({"a": "max 100000", "a/b": "300000 100000", "a/b/c": "100000 100000", "d": "100000 100000"}), 3),
    ("0::/a/b\n", v2({"a": "200000 100000", "a/b": "300000 100000"}), 2),
    ("0::/a/b\n", v2({"a": "200000 100000", "a/b": "50000 100000"}), 1),
    # A process outside of what is mounted.
    *((f"0::{group}\n", v2({"": "300000 100000", "..": "100000 100000"}), 3) for group in OUTSIDE),
    # The path is that of the host, and what is mounted begins at the container's own group.
    ("0::/docker/abc/sub\n", v2({"": "max 100000", "sub": "100000 100000"}), 1),
    ("0::/docker/abc\n", v2({"": "400000 100000", "docker/other": "100000 100000", "docker": "100000 100000"}), 4),
    # Version 1, in which the cpuset controller is another one, and both versions at once.
    (DOCKER, v1("", 250000), 3),
    (DOCKER, v1("docker/abc", 250000) | v1("docker", 200000), 2),
    ("4:cpu:/a\n", v1("a", 150000, "cpu"), 2),
    ("4:cpuacct,cpu:/\n", v1("", 150000, "cpuacct,cpu"), 2),
    ("4:cpuset:/\n", v1("", 100000), None),
    (f"{DOCKER}0::/docker/abc\n", v1("docker/abc", 200000) | v2({"unified/docker/abc": "100000 100000"}), 1),
    # No control groups at all.
    *((groups, {}, None) for groups in ("", "0::/\n", "0::/a/b\n")),
    # What can be read above a malformed limit counts all the same.
    *(("0::/a\n", v2({"a": text}), None) for text in MALFORMED),
    *(("0::/a\n", v2({"a": text, "": "700000 100000"}), 7) for text in MALFORMED),
    # Names may have blanks, colons and dots.
    ("0::/my slice/a:b..c\n", {"my slice/a:b..c/cpu.max": "100000 100000\n"}, 1),
]


@pytest.mark.skipif(os.name != "posix", reason="no such names there")
@pytest.mark.parametrize(("groups", "files", "quota"), TREES)
def test_what_is_read(tmp_path: Path, groups: str, files: dict[str, str], quota: int | None) -> None:
    assert make(tmp_path, groups, files) == quota


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert cpu_quota(str(tmp_path)) is None
    (tmp_path / "sys/fs/cgroup/a/cpu.max").mkdir(parents=True)
    assert make(tmp_path, "0::/a\n", v2({"": "200000 100000"})) == 2
    (tmp_path / "proc/self/cgroup").unlink()
    (tmp_path / "proc/self/cgroup").mkdir()
    assert cpu_quota(str(tmp_path)) is None


@given(st.text(st.sampled_from("0:/.cpu,max -\\\n\0 1"), max_size=60), st.binary(max_size=20))
def test_nothing_that_is_read_raises(tmp_path_factory: pytest.TempPathFactory, groups: str, limit: bytes) -> None:
    root = tmp_path_factory.mktemp("root")
    make(root, groups + "\n0::/\n", v2({"": ""}))
    (root / "sys/fs/cgroup/cpu.max").write_bytes(limit)
    quota = cpu_quota(str(root))
    assert quota is None or quota >= 1


def test_processors_are_the_least_of_what_is_given_and_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    given = 64
    quota: int | OSError | None = None

    def ask() -> int | None:
        if isinstance(quota, OSError):
            raise quota
        return quota

    def count(now: float) -> int:
        monkeypatch.setattr(_interpreter, "monotonic", lambda: now)
        return _interpreter.available_cpus()

    monkeypatch.setattr(_interpreter, "_last", (-inf, sys.maxsize))
    monkeypatch.setattr(_interpreter, "_given_cpus", lambda: given)
    monkeypatch.setattr(_interpreter, "cpu_quota", ask)
    assert count(100.0) == 64
    quota = 1
    assert count(100.0 + INTERVAL - 0.1) == 64
    assert count(100.0 + INTERVAL) == 1
    given = 3
    assert count(102.0 + INTERVAL) == 1
    quota = 8
    assert count(100.0 + 2 * INTERVAL) == 3
    given = 0
    assert count(100.0 + 2 * INTERVAL) == 1
    given, quota = 64, OSError(errno.EMFILE, "Too many open files")
    assert count(100.0 + 3 * INTERVAL) == 8, "it keeps the quota that it knows"


@pytest.mark.skipif(sys.platform != "linux", reason="there are control groups on Linux alone")
def test_here_it_can_be_read_and_that_no_descriptor_is_left_is_no_missing_quota(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quota = cpu_quota()
    assert quota is None or quota >= 1
    assert 1 <= _interpreter.available_cpus() <= (os.cpu_count() or 1)

    def exhausted(path: str, mode: str) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(seams.quota, "open", exhausted, raising=False)
    with pytest.raises(OSError, match="Too many"):
        cpu_quota()


def test_no_file_is_read_in_the_thread_that_makes_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[str] = []
    monkeypatch.setattr(_interpreter, "cpu_quota", lambda: readers.append(threading.current_thread().name))
    monkeypatch.setattr(_interpreter, "_last", (-inf, 3))
    with AdaptiveExecutor(4) as pool, Gate() as gate:
        assert readers == []
        # The second worker is the timekeeper's doing.
        gate.hold(pool, 2)
        assert set(readers) == {"ebbpool-timekeeper"}
