"""What CPython from 3.14 on can do to a process that does not answer: make it listen, or read its stacks.

`sys.remote_exec` makes one listen that has prepared nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from itertools import dropwhile
from typing import Any, Final

from ebbpool._top.client import Failed, alive, root_of

_SCRIPT: Final = """
def _begin():
    def look():
        import os, sys
        folder = {folder!r}
        reason = "it has not imported ebbpool"
        try:
            if "ebbpool" in sys.modules:
                try:
                    from ebbpool._monitor.listener import Listener
                except ImportError:
                    reason = "its ebbpool is too old for this one"
                else:
                    Listener(os.path.join(folder, "d", "s"), resident=True, until_left=True)
                    return
        except BaseException as error:
            reason = type(error).__name__ + ": " + str(error)
        try:
            with open(os.path.join(folder, "d", "reason.new"), "w", encoding="utf-8") as file:
                file.write(reason)
            os.rename(os.path.join(folder, "d", "reason.new"), os.path.join(folder, "d", "reason"))
        except OSError:
            pass
    import _thread
    _thread.start_new_thread(look, ())
_begin()
"""
"""What the process runs: it starts a thread, so that its main thread goes on at once."""
_TOO_LATE: Final = """
import shutil
shutil.rmtree({folder!r}, True)
"""
"""What the process runs if `top` has left before its main thread came to it."""
_OWN: Final = ".".join(map(str, sys.version_info[:2]))
PREPARE: Final = (
    "Start it with EBBPOOL_MONITOR=PATH in its environment (it listens once it has made a pool, or logs why not), or "
    "have it call ebbpool.monitor.listen(PATH), and watch it with: python -m ebbpool top PID"
)


class Attached:
    """A process that has been asked to listen, in a directory of its own, until the last one who looks has left.

    Raises:
        Failed: It cannot be asked; the text says why, and what to do.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        _must_be_possible(pid)
        root = root_of(pid)
        # A system takes some hundred bytes for the path of a socket.
        base = tempfile.gettempdir() if not root and len(tempfile.gettempdir()) < 64 else root + "/tmp"
        # Two directories: nobody else can change the outer one, into which this process writes, perhaps as root. The
        # inner one is the other process's.
        self._folder = tempfile.mkdtemp(prefix="ebb-top-", dir=base)
        self._inside = self._folder.removeprefix(root)
        self._theirs = os.path.join(self._folder, "d")
        self.path = os.path.join(self._theirs, "s")
        try:
            os.mkdir(self._theirs, 0o700)
            self._write(_SCRIPT)
            self._give_away()
            self._execute(os.path.join(self._inside, "script.py"))
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def refusal(self) -> str | None:
        """Return why the process does not listen, once it has said so."""
        # Not what a link points to, and without waiting, because the other process may have put anything there.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        with contextlib.suppress(OSError):
            number = os.open(os.path.join(self._theirs, "reason"), flags)
            try:
                return os.read(number, 4096).decode("utf-8", "replace")
            finally:
                os.close(number)
        return None

    def close(self, answered: bool) -> None:
        """Remove the directory; `answered` tells whether the process has come to the script."""
        if answered or self.refusal() is not None or not alive(self.pid):
            shutil.rmtree(self._folder, ignore_errors=True)
            return
        # It will look for the script when its main thread runs Python again, and must find one that tidies up.
        with contextlib.suppress(OSError):
            self._write(_TOO_LATE)

    def _write(self, script: str) -> None:
        new = os.path.join(self._folder, "script.new")
        with open(new, "w", encoding="utf-8") as file:
            file.write(script.format(folder=self._inside))
        os.chmod(new, 0o644)
        os.rename(new, os.path.join(self._folder, "script.py"))

    def _give_away(self) -> None:
        """Give the inner directory to the owner of the process, if that is another one."""
        owner = owner_of(self.pid)
        if owner is not None and os.geteuid() == 0 and owner[0] != 0:
            os.chown(self._theirs, *owner)
            os.chmod(self._folder, 0o711)

    def _execute(self, script: str) -> None:
        try:
            sys.remote_exec(self.pid, script)  # type: ignore[attr-defined,unused-ignore]  # since 3.14
        except (OSError, RuntimeError) as error:
            raise Failed(_explained(self.pid, error)) from None


def owner_of(pid: int) -> tuple[int, int] | None:
    try:
        found = os.stat(f"/proc/{pid}")
    except OSError:
        return None
    return found.st_uid, found.st_gid


def _must_be_possible(pid: int) -> None:
    if not alive(pid):
        raise Failed(f"there is no process {pid}")
    owner = owner_of(pid)
    if owner is not None and os.geteuid() not in (0, owner[0]):
        raise Failed(f"process {pid} belongs to another user; try: sudo {sys.executable} -m ebbpool top {pid}")
    if not hasattr(sys, "remote_exec"):
        raise Failed(
            f"process {pid} does not listen, and this Python, {_OWN}, cannot attach to it: that needs CPython 3.14 "
            f"or later, the same for both processes.\n{PREPARE}"
        )


def _explained(pid: int, error: Exception) -> str:
    """Return why a process cannot be attached to, and what to do; the text of the error says what is the matter."""
    text, again = str(error), f"-m ebbpool top {pid}"
    if not alive(pid):
        return f"process {pid} has ended"
    hint = ""
    if isinstance(error, PermissionError):
        hint = (
            "That needs the same user and, where /proc/sys/kernel/yama/ptrace_scope is not 0 (and in "
            f"containers without SYS_PTRACE), root. Try: sudo {sys.executable} {again}\nOr prepare it. "
        )
    elif "not enabled" in text:
        hint = "It was started with PYTHON_DISABLE_REMOTE_DEBUG or -X disable-remote-debug, or built without it. "
    elif "Can't send commands" in text:
        hint = (
            f"Run top with the Python of that process: {os.path.realpath(f'/proc/{pid}/exe')} {again}\nOr prepare it. "
        )
    elif "PyRuntime" in text:
        hint = f"It is not CPython {_OWN}, or no Python at all. "
    return f"process {pid} cannot be attached to: {text}\n{hint}{PREPARE}"


def stacks_from_outside(pid: int | None) -> list[str]:
    """Return the stacks of the threads of a process, in lines, as they are read without its help; none where it fails.

    Threads of ours that have no task are left out, and so is what is beneath a task.
    """
    try:
        told = importlib.import_module("_remote_debugging").RemoteUnwinder(pid, all_threads=True).get_stack_trace()
        threads = [(_name(pid, thread.thread_id), _frames(thread.frame_info)) for thread in _threads(told)]
    except Exception:
        # The module is CPython's own, and private. What it reads may change meanwhile: the next look tells more.
        return []
    lines = []
    for name, frames in threads:
        if frames:
            lines += ["", f"{name}:", *frames]
    return ["", "Its threads, seen from outside (innermost call last):", *lines] if lines else []


def _threads(told: Iterable[Any]) -> Iterator[Any]:
    for each in told:
        # CPython 3.14 tells threads; later ones tell interpreters, which have them.
        yield from getattr(each, "threads", [each])


def _name(pid: int | None, thread: int) -> str:
    """Return what the system calls a thread: the first 15 letters of its name."""
    with (
        contextlib.suppress(OSError),
        open(f"/proc/{pid}/task/{thread}/comm", encoding="utf-8", errors="replace") as file,
    ):
        return file.read().rstrip("\n")
    return f"thread {thread}"


def _frames(told: Iterable[Any]) -> list[str]:
    """Return the lines of a stack, from the task on if there is one."""
    frames = []
    for frame in dropwhile(_beneath, reversed(list(told))):
        line = frame.lineno if hasattr(frame, "lineno") else frame.location and frame.location.lineno
        frames.append(f"  {frame.filename}:{line} in {frame.funcname}")
    return frames


def _beneath(frame: Any) -> bool:
    """Return whether a frame at the bottom of a stack is one that makes a thread, or one of ours."""
    path = frame.filename.replace("\\", "/")
    return path.endswith("/threading.py") or "/ebbpool/_pool/" in path or "/ebbpool/_core/" in path
