"""The lab in docs/how-to/lab.md: before each cure the app does what the page says, after it no longer does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.common import TIMEOUT, Background, eventually
from support.monitor import Talk, tmp_path  # noqa: F401  (a fixture)
from support.pages import ROOT, blocks_of, skip_without_packages
from support.server import reserved_port

import ebbpool

LAB = ROOT / "docs/how-to/lab.md"
PLAIN = "with ebbpool.anyio.install(pool, keep_default_limiter=True):"
"""What leaves anyio its limit; without it the app runs on anyio's own threads."""
pytestmark = pytest.mark.skipif(os.name != "posix", reason="the monitor needs Unix sockets")


def app_after(cures: int) -> str:
    """Return the app of the page after as many of its changes."""
    (text, *_) = blocks_of(LAB)
    for change in re.findall(r"```diff\n(.*?)```", LAB.read_text(encoding="utf-8"), re.S)[:cures]:
        for hunk in change.split("@@\n"):
            lines = [(line[:1], line[1:]) for line in hunk.splitlines(keepends=True)]
            old = "".join(line for kind, line in lines if kind != "+")
            assert text.count(old) == 1, f"not once in the app:\n{old}"
            text = text.replace(old, "".join(line for kind, line in lines if kind != "-"))
    return text


class App:
    """A server of the lab, and what has been seen of it."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self._port = port

    def load(self, name: str) -> Counter[str]:
        """Run `load.py`; return what it has counted, and in the last second only if it counts by the second."""
        script = blocks_of(LAB)[1].replace("8000", str(self._port))
        (self.folder / "load.py").write_text(script, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "load.py", name], cwd=self.folder, capture_output=True, text=True, timeout=50, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        last = done.stdout.splitlines()[-1]
        counted = Counter({what: int(count) for count, what in re.findall(r"(\d+) x ([\w ]+)", last)})
        if burnt := re.search(r"(\d+) s in all", last):
            counted["burnt"] = int(burnt[1])
        return counted

    def look(self) -> dict[str, Any]:
        """Return what `top` would show of the pool."""
        with Talk(self.folder / "s") as talk:
            (pool,) = talk.ask()["pools"]
        return dict(pool)

    def running(self, name: str, abandoned: bool = False) -> int:
        tasks = self.look()["tasks"]
        return sum(task["name"] == f"lab.{name}" and task["abandoned"] == abandoned for task in tasks)


@contextmanager
def serving(folder: Path, app: str) -> Iterator[App]:
    """Run an app of the lab, under uvicorn as on the page; its monitor listens."""
    folder.mkdir()
    (folder / "lab.py").write_text(app, encoding="utf-8")
    leaving = blocks_of(ROOT / "docs/integrations/fastapi.md")[1]
    (folder / "leaving.py").write_text(leaving, encoding="utf-8")
    skip_without_packages(f"import uvicorn\n{app}")
    environment = dict(os.environ, EBBPOOL_MONITOR="s", PYTHONPATH=str(Path(ebbpool.__file__).parent.parent))
    with reserved_port() as port, (folder / "log").open("w+", encoding="utf-8") as log:
        command = [sys.executable, "-m", "uvicorn", "lab:app", "--port", str(port)]
        with subprocess.Popen(command, cwd=folder, env=environment, stderr=log, stdout=log) as process:
            try:
                eventually(
                    lambda: "running on" in (folder / "log").read_text(encoding="utf-8"), "it serves", 3 * TIMEOUT
                )
                yield App(folder, port)
            finally:
                process.kill()


def test_it_freezes(tmp_path: Path) -> None:  # noqa: F811
    with (
        serving(tmp_path / "plain", app_after(0).replace(PLAIN, "if True:")) as plain,
        serving(tmp_path / "before", app_after(0)) as before,
        serving(tmp_path / "after", app_after(1)) as after,
    ):
        loads = [Background(partial(app.load, "freeze")) for app in (plain, before)]
        eventually(lambda: before.running("get_db") == 40, "all threads wait for a connection")
        assert before.look()["queued"] == 0
        assert after.load("freeze") == {"200": 60}
        for load in loads:
            counted = load.join()
            assert counted["500"] > 0
            assert counted.total() == 60


def test_it_is_slow(tmp_path: Path) -> None:  # noqa: F811
    with serving(tmp_path / "before", app_after(1)) as before, serving(tmp_path / "after", app_after(2)) as after:
        load = Background(partial(before.load, "slow"))
        counted = after.load("slow")
        assert counted["200"] > 5 and counted["503"] > 5
        assert after.look()["expired"] > 0
        assert load.join() == {"gave up": 80}


def test_it_burns(tmp_path: Path) -> None:  # noqa: F811
    with (
        serving(tmp_path / "before", app_after(2)) as before,
        serving(tmp_path / "told", app_after(3)) as told,
        serving(tmp_path / "after", app_after(4)) as after,
    ):
        loads = [Background(partial(app.load, "burn")) for app in (before, told)]
        eventually(lambda: told.running("export", abandoned=True) == 30, "all are marked")
        assert after.load("burn")["burnt"] < 15
        assert all(load.join()["burnt"] > 60 for load in loads)
        assert "Traceback" not in (after.folder / "log").read_text(encoding="utf-8")
