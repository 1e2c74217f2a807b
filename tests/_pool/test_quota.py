"""The container's CPU quota: read from trees such as kernels and container runtimes make them."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbpool import _interpreter
from ebbpool._testing import seams

INTERVAL, Processors, cpu_quota = seams.quota.INTERVAL, seams.quota.Processors, seams.quota.cpu_quota

V2 = "35 24 0:31 {root} /sys/fs/cgroup rw,nosuid,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "33 31 0:30 {root} /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:15 master:2 - cgroup cgroup rw,cpu,cpuacct\n"
OTHERS = (
    "23 27 0:22 / /sys rw,relatime shared:7 - sysfs sysfs rw\n"
    "31 23 0:28 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n"
    "34 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "36 31 0:33 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n"
)


def make(root: Path, groups: str, mounts: str, files: dict[str, str]) -> int | None:
    """Say in which groups the process is, what is mounted, and what is in files below that; return the quota."""
    for path, text in {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts, **files}.items():
        file = root / ("" if path.startswith("proc") else "sys/fs/cgroup") / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return cpu_quota(str(root))


def v1(group: str, quota: int) -> dict[str, str]:
    folder = f"cpu,cpuacct/{group}"
    return {f"{folder}/cpu.cfs_quota_us": f"{quota}\n", f"{folder}/cpu.cfs_period_us": "100000\n"}


def v2(limits: dict[str, str]) -> dict[str, str]:
    return {f"./{group}/cpu.max": f"{limit}\n" for group, limit in limits.items()}


DOCKER = "4:cpu,cpuacct:/docker/abc\n"
HERE, THERE = V2.format(root="/"), V2.format(root="/docker/abc")
BLANKS = V2.format(root="/my\\040slice").replace("/sys/fs/cgroup", "/sys/fs/cgroup/c\\040group\\134")
BOTH = OTHERS + V1.format(root="/") + HERE.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
LIMITS = {"max 100000": None, "100000 100000": 1, "150000 100000": 2, "1000 100000": 1, "200000 50000": 4}
MALFORMED = ["", "max", "100000", "x 100000", "100000 x", "0 100000", "-5 100000", "100000 0", "1 2 3", "1.5 2", "\0"]
OUTSIDE = ["/elsewhere/xyz", "/../../elsewhere", "/docker/abcdef", "/docker/abc/../.."]
TREES: list[tuple[str, str, dict[str, str], int | None]] = [
    # A namespaced container.
    *(("0::/\n", OTHERS + HERE, v2({"": limit}), quota) for limit, quota in LIMITS.items()),
    # The least of all groups above counts.
    (
        "0::/a/b\n",
        HERE,
        v2({"a": "max 100000", "a/b": "300000 100000", "a/b/c": "100000 100000", "d": "100000 100000"}),
        3,
    ),
    ("0::/a/b\n", HERE, v2({"a": "200000 100000", "a/b": "300000 100000"}), 2),
    ("0::/a/b\n", HERE, v2({"a": "200000 100000", "a/b": "50000 100000"}), 1),
    # A process outside of what is mounted.
    *(
        (f"0::{group}\n", THERE, v2({"": "300000 100000", "def": "100000 100000", "..": "100000 100000"}), 3)
        for group in OUTSIDE
    ),
    # Version 1, in which the cpuset controller is another one, and both versions at once.
    (f"5:memory:/docker/abc\n{DOCKER}3:cpuset:/\n", OTHERS + V1.format(root="/docker/abc"), v1("", 250000), 3),
    (f"5:memory:/docker/abc\n{DOCKER}3:cpuset:/\n", OTHERS + V1.format(root="/docker/abc"), v1("", -1), None),
    ("4:cpuset:/\n", OTHERS + V1.format(root="/"), v1("", 100000), None),
    (f"{DOCKER}0::/docker/abc\n", BOTH, v1("docker/abc", 200000), 2),
    (f"{DOCKER}0::/docker/abc\n", BOTH, v1("docker/abc", 200000) | v2({"unified/docker/abc": "100000 100000"}), 1),
    # No control groups at all.
    *((groups, mounts, {}, None) for groups, mounts in [("", ""), ("0::/\n", OTHERS), ("0::/\n", HERE)]),
    # What can be read above a malformed limit counts all the same.
    *(("0::/a\n", HERE, v2({"a": text}), None) for text in MALFORMED),
    *(("0::/a\n", HERE, v2({"a": text, "": "700000 100000"}), 7) for text in MALFORMED),
]


@pytest.mark.parametrize(("groups", "mounts", "files", "quota"), TREES)
def test_what_is_read(tmp_path: Path, groups: str, mounts: str, files: dict[str, str], quota: int | None) -> None:
    assert make(tmp_path, groups, mounts, files) == quota


@pytest.mark.skipif(os.name != "posix", reason="no such names there")
def test_names_with_blanks_and_colons(tmp_path: Path) -> None:
    assert make(tmp_path, "0::/my slice/a:b\n", BLANKS, {"c group\\/a:b/cpu.max": "100000 100000\n"}) == 1


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert cpu_quota(str(tmp_path)) is None
    (tmp_path / "sys/fs/cgroup/a/cpu.max").mkdir(parents=True)
    assert make(tmp_path, "0::/a\n", HERE, v2({"": "200000 100000"})) == 2
    (tmp_path / "proc/self/mountinfo").unlink()
    (tmp_path / "proc/self/mountinfo").mkdir()
    assert cpu_quota(str(tmp_path)) is None


@given(
    st.text(st.sampled_from("0:/.cpu,max -\\\n\0 1"), max_size=60),
    st.text(st.sampled_from("0:/.cgroup2,cpu -\\\n\0 1"), max_size=120),
    st.binary(max_size=20),
)
def test_nothing_that_is_read_raises(
    tmp_path_factory: pytest.TempPathFactory, groups: str, mounts: str, limit: bytes
) -> None:
    root = tmp_path_factory.mktemp("root")
    make(root, groups + "\n0::/\n", mounts + "\n" + HERE, v2({"": ""}))
    (root / "sys/fs/cgroup/cpu.max").write_bytes(limit)
    quota = cpu_quota(str(root))
    assert quota is None or quota >= 1


def test_processors_are_the_least_of_what_is_given_and_the_quota() -> None:
    given: list[int] = [64]
    quota: list[int | OSError | None] = [None]
    asked = []

    def ask() -> int | None:
        asked.append(True)
        if isinstance(quota[0], OSError):
            raise quota[0]
        return quota[0]

    processors = Processors(lambda: given[0], ask)
    assert processors.count(100.0) == 64
    quota[0] = 1
    assert processors.count(100.0 + INTERVAL - 0.1) == 64
    assert len(asked) == 1
    assert processors.count(100.0 + INTERVAL) == 1
    assert len(asked) == 2
    given[0] = 3
    assert processors.count(102.0 + INTERVAL) == 1
    quota[0] = 8
    assert processors.count(100.0 + 2 * INTERVAL) == 3
    given[0] = 0
    assert processors.count(100.0 + 2 * INTERVAL) == 1
    given[0], quota[0] = 64, OSError(errno.EMFILE, "Too many open files")
    assert processors.count(100.0 + 3 * INTERVAL) == 8, "it keeps the quota that it knows"


@pytest.mark.skipif(sys.platform != "linux", reason="there are control groups on Linux alone")
def test_here_it_can_be_read_and_that_no_descriptor_is_left_is_no_missing_quota(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quota = cpu_quota()
    assert quota is None or quota >= 1
    assert 1 <= _interpreter.available_cpus() <= (os.cpu_count() or 1)

    def exhausted(path: str) -> str:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(seams.quota, "_read", exhausted)
    with pytest.raises(OSError, match="Too many"):
        cpu_quota()
