"""`top` in a real terminal: a pseudo terminal that is read and typed into."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

pytest.importorskip("rich")
pytest.importorskip("termios")

import termios

from support.common import STACKS, TIMEOUT, Gate, environment, eventually
from support.monitor import terminal

from ebbpool import AdaptiveExecutor, monitor

pytestmark = pytest.mark.skipif(not hasattr(termios, "tcsetwinsize"), reason="needs termios.tcsetwinsize")
LEFT = r"\x1b\[\?1049l"
"""What gives the screen back that was there before."""
COLOURED = re.compile(r"\x1b\[[0-9;]*3[0-7]m")
SLOW = 4 * TIMEOUT
"""Seconds that an interpreter may take to start, or to end, on a busy machine."""


class Seen:
    """`top` in a pseudo terminal of 80 columns and 24 lines."""

    def __init__(self, path: str, **environ: str) -> None:
        self.master, self.slave = os.openpty()
        termios.tcsetwinsize(self.slave, (24, 80))
        self.before = termios.tcgetattr(self.slave)
        inherited = {
            name: value for name, value in environment().items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        command = [sys.executable, "-m", "ebbpool", "top", path]
        env = inherited | {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"} | environ
        # A group of its own, in this session: where there is no shell, nothing can be stopped.
        self.process = subprocess.Popen(
            command, stdin=self.slave, stdout=self.slave, stderr=self.slave, env=env, process_group=0
        )
        self.text = self.all = ""

    def until(self, pattern: str) -> None:
        """Read on until what came since the last match matches."""
        deadline = time.monotonic() + SLOW
        while not (match := re.search(pattern, self.text, re.DOTALL)):
            assert time.monotonic() < deadline, self.text
            if select.select([self.master], [], [], 0.1)[0]:
                piece = os.read(self.master, 65536).decode("utf-8", "replace")
                self.text += piece
                self.all += piece
        self.text = self.text[match.end() :]

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def quit(self) -> None:
        self.type(b"q")
        self.until(LEFT)
        assert self.end() == 0

    def end(self) -> int:
        """Wait for the end; the terminal must be as it was."""
        status = self.process.wait(SLOW)
        assert termios.tcgetattr(self.slave)[:4] == self.before[:4]
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def listening(short_path: Path) -> Iterator[monitor.Listener]:
    with monitor.listen(short_path / "m") as listening:
        yield listening


@pytest.fixture
def seen(listening: monitor.Listener) -> Iterator[Seen]:
    with Seen(listening.path) as result:
        yield result


def test_a_stack_on_enter(seen: Seen) -> None:
    with AdaptiveExecutor(2, "web") as pool, Gate() as gate:
        gate.hold(pool)
        seen.until(r"\x1b\[\?1049h.*RUNNING 1 .*web_0.*q quit")
        seen.type(b"\r")
        shown = r"_open\.wait" if STACKS else r"\(no stack"
        seen.until(f"STACK of .*web_0.*{shown}.*Enter back")
        seen.type(b"\x1b")
        seen.until("RUNNING 1")
        assert COLOURED.search(seen.all)
        # Each screen is drawn over the last one, and nothing scrolls.
        assert seen.all.count("\x1b[H") >= seen.all.count("pid ") > 2
        seen.quit()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_gives_the_terminal_back(seen: Seen, number: signal.Signals) -> None:
    seen.until("q quit")
    seen.process.send_signal(number)
    seen.until(LEFT)
    assert seen.end() == (0 if number == signal.SIGINT else 128 + number)


def test_stopping_gives_the_terminal_to_the_shell(seen: Seen) -> None:
    seen.until("q quit")
    seen.type(b"\x1a")
    seen.until(LEFT)
    eventually(lambda: os.waitpid(seen.process.pid, os.WUNTRACED | os.WNOHANG)[0], "it is stopped")
    assert termios.tcgetattr(seen.slave)[:4] == seen.before[:4]
    seen.process.send_signal(signal.SIGCONT)
    seen.until(r"\x1b\[\?1049h.*q quit")
    seen.quit()


def test_a_process_that_ends(listening: monitor.Listener, seen: Seen) -> None:
    seen.until("q quit")
    listening.close()
    seen.until(LEFT + r".*process \d+ has ended, or no longer listens on")
    assert seen.end() == 1


def test_colours_can_be_turned_off(listening: monitor.Listener) -> None:
    with Seen(listening.path, NO_COLOR="1") as seen, AdaptiveExecutor(2, "web") as pool, Gate() as gate:
        gate.hold(pool)
        seen.until("RUNNING 1.*q quit")
        assert not COLOURED.search(seen.all)
        seen.quit()


def test_a_dumb_terminal_gets_one_plain_screen(listening: monitor.Listener) -> None:
    with Seen(listening.path, TERM="dumb") as seen:
        seen.until(r"pid \d+ .*SIZING")
        assert seen.end() == 0
        assert "\x1b" not in seen.all


def test_keys_are_known_by_what_a_terminal_sends() -> None:
    for data, keys in {
        b"": [],
        b"jkq": ["down", "up", "quit"],
        b"\x1b[A\x1b[B\x1bOA\x1bOB": ["up", "down", "up", "down"],
        b"\x1b[5~\x1b[6~ ": ["page up", "page down", "page down"],
        b"\r\n": ["enter", "enter"],
        b"\x1b": ["escape"],
        b"\x1bj": ["escape", "down"],
        b"\x1b[1;5Cj\x1b[200~q": ["down", "quit"],
        b"\x1b[": [],
        b"x\xc3\xa9Q": ["quit"],
    }.items():
        assert terminal.keys_in(data) == keys
