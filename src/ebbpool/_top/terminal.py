"""The terminal of `top`: what keys say, and that it is given back as it was found, whatever ends the program."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import termios
import tty
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.live import Live

if TYPE_CHECKING:
    from rich.console import Console

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


def _leave(number: int, _: object) -> None:
    raise SystemExit(128 + number)


@contextlib.contextmanager
def left_by_signals() -> Iterator[None]:
    """Have the signals that end a process leave a block, so that everything is given back."""
    handlers = {number: signal.signal(number, _leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def taken(console: Console, keyboard: int) -> Iterator[Live]:
    """Have the terminal for a block, and what draws each screen over the last one."""
    before = termios.tcgetattr(keyboard)
    live = Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    try:
        tty.setcbreak(keyboard)
        # Ctrl-Z is a key, because a signal may come in the midst of drawing.
        changed = termios.tcgetattr(keyboard)
        changed[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(keyboard, termios.TCSANOW, changed)
        live.start()
        yield live
    finally:
        # The other end of a line may be gone.
        with contextlib.suppress(OSError):
            live.stop()
        with contextlib.suppress(termios.error):
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def keys_pressed(keyboard: int, others: Sequence[Any], timeout: float) -> list[str]:
    """Return the keys that are pressed within `timeout` seconds; none once one of the `others` has something."""
    ready, _, _ = select.select([keyboard, *others], [], [], max(0.0, timeout))
    if keyboard not in ready:
        return []
    data = os.read(keyboard, 1024)
    if not data:
        return ["quit"]
    # Over a slow line a sequence may come in pieces.
    if data.endswith((b"\x1b", b"\x1b[", b"\x1bO")) and select.select([keyboard], [], [], 0.05)[0]:
        data += os.read(keyboard, 1024)
    return keys_in(data)
