"""A terminal that is given back as it was found, whatever ends or stops the program."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import termios
import tty
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.control import Control

if TYPE_CHECKING:
    from typing import Self

    from rich.console import Console, RenderableType

_KEYS: Final = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"k": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"j": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b" ": "page down",
    b"\r": "enter",
    b"\n": "enter",
    b"\x1b": "escape",
    b"s": "sort",
    b"q": "quit",
    b"Q": "quit",
    b"\x03": "quit",
    b"\x04": "quit",
    b"\x1a": "pause",
}
_KEY: Final = re.compile(rb"\x1b[\[O][ -?]*[@-~]?|.", re.DOTALL)
"""One key: a byte, or a sequence that an escape begins, which may be cut off."""


def keys_in(data: bytes) -> list[str]:
    return [_KEYS[key] for key in _KEY.findall(data) if key in _KEYS]


class Terminal:
    def __init__(self, console: Console, keyboard: int) -> None:
        self._console = console
        self._keyboard = keyboard
        self._screen: Any = None
        self._before: Any = None
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._handlers[number] = signal.signal(number, self._leave)
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        self._give_back()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def show(self, picture: RenderableType) -> None:
        """Draw one screen over the last one, in one piece, so that nothing flickers."""
        with self._console:
            self._console.control(Control.home())
            self._screen.update(picture)

    def wait(self, others: Sequence[Any], timeout: float) -> list[str]:
        """Return the keys that are pressed within `timeout` seconds; none once one of the `others` has something."""
        ready, _, _ = select.select([self._keyboard, *others], [], [], max(0.0, timeout))
        if self._keyboard not in ready:
            return []
        data = os.read(self._keyboard, 1024)
        if not data:
            return ["quit"]
        # Over a slow line a sequence may come in pieces.
        if data.endswith((b"\x1b", b"\x1b[", b"\x1bO")) and select.select([self._keyboard], [], [], 0.05)[0]:
            data += os.read(self._keyboard, 1024)
        keys = keys_in(data)
        if "pause" in keys:
            # The shell has the terminal until it lets the process go on.
            self._give_back()
            os.kill(os.getpid(), signal.SIGTSTP)
            self._take()
        return [key for key in keys if key != "pause"]

    def _take(self) -> None:
        self._before = termios.tcgetattr(self._keyboard)
        tty.setcbreak(self._keyboard)
        # Ctrl-Z is a key, because a signal may come in the midst of drawing.
        changed = termios.tcgetattr(self._keyboard)
        changed[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(self._keyboard, termios.TCSANOW, changed)
        self._screen = self._console.screen(hide_cursor=True)
        self._screen.__enter__()

    def _give_back(self) -> None:
        if self._screen is not None:
            screen, self._screen = self._screen, None
            # The other end of a line may be gone.
            with contextlib.suppress(OSError):
                screen.__exit__(None, None, None)
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._before)

    def _leave(self, number: int, _: object) -> None:
        raise SystemExit(128 + number)
