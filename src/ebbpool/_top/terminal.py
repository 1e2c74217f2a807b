"""A terminal that is given back as it was found, whatever ends or stops the program."""

from __future__ import annotations

import contextlib
import os
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
    b"\x1b[A": "up", b"\x1bOA": "up", b"k": "up",
    b"\x1b[B": "down", b"\x1bOB": "down", b"j": "down",
    b"\x1b[5~": "page up", b"\x1b[6~": "page down", b" ": "page down",
    b"\r": "enter", b"\n": "enter", b"\x1b": "escape",
    b"s": "sort", b"q": "quit", b"Q": "quit", b"\x03": "quit", b"\x04": "quit",
}  # fmt: skip


def keys_in(data: bytes) -> list[str]:
    """Return the keys that were pressed; those that mean nothing are left out."""
    found = []
    place = 0
    while place < len(data):
        for length in (4, 3, 1):
            name = _KEYS.get(data[place : place + length])
            # An escape that begins an unknown sequence is not the Escape key.
            if name == "escape" and data[place + 1 : place + 2] in (b"[", b"O"):
                length, name = _length_of_sequence(data[place:]), None
            if name is not None or length not in (4, 3):
                if name is not None:
                    found.append(name)
                place += length
                break
    return found


def _length_of_sequence(data: bytes) -> int:
    for place in range(2, len(data)):
        if 0x40 <= data[place] <= 0x7E:
            return place + 1
    return len(data)


class Terminal:
    """The screen and the keyboard, between `__enter__` and `__exit__`.

    Args:
        console: What draws.
        keyboard: The descriptor that keys are read from; a terminal's.
    """

    def __init__(self, console: Console, keyboard: int) -> None:
        self._console = console
        self._keyboard = keyboard
        self._screen: Any = None
        self._before: Any = None
        self._handlers: dict[int, Any] = {}
        self._pausing = False
        self._bell, self._rope = os.pipe()

    def __enter__(self) -> Self:
        """Take the terminal over."""
        os.set_blocking(self._rope, False)
        os.set_blocking(self._bell, False)
        for number, handler in (
            (signal.SIGTERM, self._leave),
            (signal.SIGHUP, self._leave),
            (signal.SIGTSTP, self._ask_to_pause),
            (signal.SIGWINCH, lambda *_: None),
        ):
            self._handlers[number] = signal.signal(number, handler)
        # So that a signal ends `wait`.
        self._wakeup = signal.set_wakeup_fd(self._rope, warn_on_full_buffer=False)
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        """Give it back."""
        self._give_back()
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._bell)
        os.close(self._rope)

    def show(self, picture: RenderableType) -> None:
        """Draw one screen over the last one, in one piece, so that nothing flickers."""
        with self._console:
            self._console.control(Control.home())
            self._screen.update(picture)

    def wait(self, others: Sequence[Any], timeout: float) -> list[str]:
        """Return the keys that are pressed within `timeout` seconds; none once one of the `others` has something."""
        ready, _, _ = select.select([self._keyboard, self._bell, *others], [], [], max(0.0, timeout))
        if self._bell in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._bell, 4096)
        if self._pausing:
            self._pausing = False
            self._pause()
        if self._keyboard not in ready:
            return []
        data = os.read(self._keyboard, 1024)
        if not data:
            return ["quit"]
        # Over a slow line a sequence may come in pieces.
        if data.endswith((b"\x1b", b"\x1b[", b"\x1bO")) and select.select([self._keyboard], [], [], 0.05)[0]:
            data += os.read(self._keyboard, 1024)
        return keys_in(data)

    def _take(self) -> None:
        self._before = termios.tcgetattr(self._keyboard)
        tty.setcbreak(self._keyboard)
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

    def _ask_to_pause(self, *_: object) -> None:
        # Not here: the signal may have come in the midst of drawing.
        self._pausing = True

    def _pause(self) -> None:
        """Stop, as Ctrl-Z asks for; the shell has the terminal meanwhile."""
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        # Here again once the shell lets the process go on.
        signal.signal(signal.SIGTSTP, self._ask_to_pause)
        self._take()
