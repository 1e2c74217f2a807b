"""``python -m ebbpool top``: lists the processes that listen, or shows what one of them answers, live or once."""

from __future__ import annotations

import functools
import io
import json
import os
import re
import shutil
import signal
import socket
import sys
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING, Any, Final

from ebbpool._clock import monotonic
from ebbpool._top.client import LATE, Client
from ebbpool._top.processes import PREPARE, Attached, Failed, everyone, find, printable
from ebbpool._version import __version__

if TYPE_CHECKING:
    from rich.console import Console

INTERVAL: Final = 1.0
"""Seconds from one snapshot to the next."""
TIMEOUT: Final = 30.0
"""Seconds for which ``--once`` and ``--json`` wait for an answer."""
_BEFORE: Final = re.compile(r"((\S*/)?(python|pypy)\S* (-[XW] \S+ |-[^mc ]\S* )*(-m )?)?(\S*/)?(?=.)")
"""What stands before the name of a program in a command line: an interpreter with its options, and a folder."""
_print: Final = functools.partial(print, flush=True)


def run(target: str | None, once: bool, as_json: bool, stacks: bool) -> int:
    """Watch the process with a number, or at a path, or list those that listen; return the exit status."""
    try:
        if not hasattr(socket, "AF_UNIX"):
            raise Failed("this Python has no Unix sockets, which top needs")
        if target is None:
            return _list(as_json)
        with closing(_client(target)) as client:
            if as_json:
                _print(json.dumps(_one(client, True), indent=2))
                return 0
            try:
                return _show(client, once, stacks)
            except (KeyError, TypeError) as error:
                raise Failed(
                    f"process {client.pid} sent an answer that this version, {__version__}, does not understand "
                    f"({error!r}); use the ebbpool of that process, or --json"
                ) from error
    except Failed as error:
        lines = str(error).split("\n")
        sys.stderr.write("python -m ebbpool top: " + "\n".join(map(printable, lines)) + "\n")
        return 1
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:
        # Nobody reads any more; what is left in the buffer must not fail at the end.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _client(target: str) -> Client:
    if not (target.isascii() and target.isdigit()):
        return Client(target)
    pid = int(target)
    path = find(pid)
    if path is not None:
        return Client(path, pid)
    attached = Attached(pid)
    return Client(attached.path, pid, attached)


def _list(as_json: bool) -> int:
    found = everyone()
    if as_json:
        processes = [{"pid": pid, "path": path, "command": command} for pid, path, command in found]
        _print(json.dumps({"processes": processes}, indent=2))
        return 0
    if not found:
        raise Failed(
            "no process of yours is listening. One on CPython 3.14 or later need not listen: run python -m ebbpool top "
            f"PID with that process's Python.\nPrepare any other. {PREPARE}"
        )
    _print(f"{'PID':>7}  {'PATH':<30}  COMMAND")
    width = shutil.get_terminal_size().columns
    for pid, path, command in found:
        line = f"{pid:>7}  {printable(path):<30}  "
        # A command line may go on for pages; the path is what one needs.
        _print(line + printable(_BEFORE.sub("", command, 1))[: max(20, width - len(line))])
    _print("\nWatch one with: python -m ebbpool top PID")
    return 0


def _one(client: Client, stacks: bool) -> dict[str, Any]:
    """Return one snapshot; while it does not come, say so."""
    client.ask(stacks)
    said = LATE
    while (snapshot := client.take(0.25)) is None:
        if client.silent >= said:
            said += LATE
            sys.stderr.write(f"process {client.pid}: no answer for {int(client.silent)} s\n")
        if client.silent >= TIMEOUT:
            raise Failed(
                f"process {client.pid} has not answered for {int(client.silent)} s. It may be stopped, something may "
                "hold its GIL, or (if top attached to it) its main thread may be stuck in a system call"
            )
    return snapshot


def _show(client: Client, once: bool, stacks: bool) -> int:
    try:
        from rich.console import Console
    except ImportError:
        raise Failed("the screen needs rich: python -m pip install rich (or use --json)") from None
    from ebbpool._top.view import Model, screen

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=False)
    # Not every encoding has the bars.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    keyboard = sys.stdin is not None and sys.stdin.isatty()
    if keyboard and not once and console.is_terminal and console.is_interactive and not console.is_dumb_terminal:
        return _live(client, console)
    model = Model()
    model.update(_one(client, stacks))
    console.print(screen(model, console.width, keys=False, stacks=stacks), crop=False)
    return 0


def _live(client: Client, console: Console) -> int:
    from ebbpool._top.terminal import keys_pressed, left_by_signals, taken
    from ebbpool._top.view import KEYS, Model, screen

    model = Model(client.hope)
    following = monotonic()
    keyboard = sys.stdin.fileno()
    with left_by_signals(), ExitStack() as terminal:
        live = terminal.enter_context(taken(console, keyboard))
        while True:
            if monotonic() >= following and not client.silent:
                client.ask(stacks=model.opened is not None and not model.over)
                following = monotonic() + INTERVAL
            snapshot = client.take()
            if snapshot is not None:
                model.update(snapshot)
            model.silent = client.silent
            live.update(screen(model, console.width, console.height), refresh=True)
            # With an answer outstanding the seconds without one are counted.
            left = following - monotonic() if not client.silent else 0.25
            for key in keys_pressed(keyboard, client.waits_for(), min(left, INTERVAL)):
                if key == "quit":
                    return 0
                if key == "pause":
                    # The shell has the terminal until it lets the process go on.
                    terminal.close()
                    os.kill(os.getpid(), signal.SIGTSTP)
                    live = terminal.enter_context(taken(console, keyboard))
                    continue
                if key == "enter":
                    # The stack is asked for at once.
                    following = 0.0
                KEYS[key](model)
