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


class Tree:
    """A root directory, with the files of control groups that a test puts there."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def process(self, groups: str, mounts: str) -> None:
        """Say in which groups the process is, and what is mounted."""
        self.put("proc/self/cgroup", groups)
        self.put("proc/self/mountinfo", mounts)

    def v2(self, group: str, limit: str) -> None:
        self.put(f"sys/fs/cgroup/{group}/cpu.max", f"{limit}\n")

    def v1(self, group: str, quota: object, period: object = 100000) -> None:
        self.put(f"sys/fs/cgroup/cpu,cpuacct/{group}/cpu.cfs_quota_us", f"{quota}\n")
        self.put(f"sys/fs/cgroup/cpu,cpuacct/{group}/cpu.cfs_period_us", f"{period}\n")

    def quota(self) -> int | None:
        return cpu_quota(str(self.root))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.mark.parametrize(
    ("limit", "quota"),
    [
        ("max 100000", None),
        ("100000 100000", 1),
        ("150000 100000", 2),
        ("1000 100000", 1),
        ("200000 50000", 4),
        ("6400000 100000", 64),
    ],
)
def test_a_namespaced_container(tree: Tree, limit: str, quota: int | None) -> None:
    tree.process("0::/\n", OTHERS + V2.format(root="/"))
    tree.v2("", limit)
    assert tree.quota() == quota


def test_the_least_of_all_groups_above_counts(tree: Tree) -> None:
    tree.process("0::/kubepods.slice/pod.slice/task.scope\n", V2.format(root="/"))
    tree.v2("kubepods.slice", "max 100000")
    tree.v2("kubepods.slice/pod.slice", "300000 100000")
    tree.v2("kubepods.slice/pod.slice/task.scope", "500000 100000")
    tree.v2("other.slice", "100000 100000")
    assert tree.quota() == 3
    tree.v2("kubepods.slice", "200000 100000")
    assert tree.quota() == 2
    tree.v2("kubepods.slice/pod.slice/task.scope", "50000 100000")
    assert tree.quota() == 1


@pytest.mark.parametrize("group", ["/elsewhere/xyz", "/../../elsewhere", "/docker/abcdef", "/docker/abc/../.."])
def test_a_process_outside_of_what_is_mounted(tree: Tree, group: str) -> None:
    tree.process(f"0::{group}\n", V2.format(root="/docker/abc"))
    tree.v2("", "300000 100000")
    tree.put("sys/fs/cpu.max", "100000 100000\n")
    tree.v2("def", "100000 100000")
    assert tree.quota() == 3


def test_version_1(tree: Tree) -> None:
    tree.process(
        "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n3:cpuset:/\n", OTHERS + V1.format(root="/docker/abc")
    )
    tree.v1("", 250000)
    assert tree.quota() == 3
    tree.v1("", -1)
    assert tree.quota() is None


def test_the_cpuset_controller_is_another_one(tree: Tree) -> None:
    tree.process("4:cpuset:/\n", OTHERS + V1.format(root="/"))
    tree.v1("", 100000)
    assert tree.quota() is None


def test_both_versions_at_once(tree: Tree) -> None:
    unified = V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
    tree.process("4:cpu,cpuacct:/docker/abc\n0::/docker/abc\n", OTHERS + V1.format(root="/") + unified.format(root="/"))
    tree.v1("docker/abc", 200000)
    assert tree.quota() == 2
    tree.put("sys/fs/cgroup/unified/docker/abc/cpu.max", "100000 100000\n")
    assert tree.quota() == 1


@pytest.mark.skipif(os.name != "posix", reason="no such names there")
def test_names_with_blanks_and_colons(tree: Tree) -> None:
    mount = V2.format(root="/my\\040slice").replace("/sys/fs/cgroup", "/sys/fs/c\\040group\\134")
    tree.process("0::/my slice/a:b\n", mount)
    tree.put("sys/fs/c group\\/a:b/cpu.max", "100000 100000\n")
    assert tree.quota() == 1


def test_no_control_groups_at_all(tree: Tree) -> None:
    assert tree.quota() is None
    tree.process("", "")
    assert tree.quota() is None
    tree.process("0::/\n", OTHERS)
    assert tree.quota() is None
    tree.process("0::/\n", V2.format(root="/"))
    assert tree.quota() is None


@pytest.mark.parametrize(
    "text", ["", "max", "100000", "x 100000", "100000 x", "0 100000", "-5 100000", "100000 0", "1 2 3", "1.5 2", "\0"]
)
def test_a_malformed_limit_is_none(tree: Tree, text: str) -> None:
    tree.process("0::/a\n", V2.format(root="/"))
    tree.v2("a", text)
    assert tree.quota() is None
    # What can be read above it counts all the same.
    tree.v2("", "700000 100000")
    assert tree.quota() == 7


def test_a_file_that_cannot_be_read(tree: Tree) -> None:
    tree.process("0::/a\n", V2.format(root="/"))
    (tree.root / "sys/fs/cgroup/a/cpu.max").mkdir(parents=True)
    tree.v2("", "200000 100000")
    assert tree.quota() == 2
    (tree.root / "proc/self/mountinfo").unlink()
    (tree.root / "proc/self/mountinfo").mkdir()
    assert tree.quota() is None


@given(
    st.text(st.sampled_from("0:/.cpu,max -\\\n\0 1"), max_size=60),
    st.text(st.sampled_from("0:/.cgroup2,cpu -\\\n\0 1"), max_size=120),
    st.binary(max_size=20),
)
def test_nothing_that_is_read_raises(
    tmp_path_factory: pytest.TempPathFactory, groups: str, mounts: str, limit: bytes
) -> None:
    tree = Tree(tmp_path_factory.mktemp("root"))
    tree.process(groups + "\n0::/\n", mounts + "\n" + V2.format(root="/"))
    tree.v2("", "")
    (tree.root / "sys/fs/cgroup/cpu.max").write_bytes(limit)
    quota = tree.quota()
    assert quota is None or quota >= 1


def test_processors_are_the_least_of_what_is_given_and_the_quota() -> None:
    given: list[int] = [64]
    quota: list[int | None] = [None]
    asked = []

    def ask() -> int | None:
        asked.append(True)
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


@pytest.mark.skipif(sys.platform != "linux", reason="there are control groups on Linux alone")
def test_here_it_can_be_read() -> None:
    quota = cpu_quota()
    assert quota is None or quota >= 1
    assert 1 <= _interpreter.available_cpus() <= (os.cpu_count() or 1)


def test_a_process_without_a_descriptor_left_keeps_the_quota_it_knows() -> None:
    answers: list[int | OSError | None] = [1, OSError(errno.EMFILE, "Too many open files"), 2]

    def quota() -> int | None:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    processors = Processors(lambda: 64, quota)
    assert [processors.count(10.0 * number) for number in range(3)] == [1, 1, 2]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux has control groups")
def test_that_no_descriptor_is_left_is_no_missing_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(path: str) -> str:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(seams.quota, "_read", exhausted)
    with pytest.raises(OSError, match="Too many"):
        cpu_quota()
