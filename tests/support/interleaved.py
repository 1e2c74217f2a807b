"""Runs a small program on the plain core in every order of steps: one thread at a time, on a clock that is not real.

A fresh copy of ebbpool and of the standard library's thread modules is imported over locks, threads and a clock that
belong to a `Run`. At each line of the engine (`ENGINE`) another thread may go on in place of the one that runs, and a
wait may end because its time is over. Nothing here knows a name of the engine's.
"""

from __future__ import annotations

import _thread
import importlib
import importlib.machinery
import importlib.util
import linecache
import logging
import os
import random
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

PACKAGE = Path(importlib.import_module("ebbpool").__path__[0])
ENGINE = tuple(str(PACKAGE / part) for part in ("_core/", "_pool/crew", "_pool/executor_base", "_pool/timekeeper"))
ENGINE += (str(PACKAGE / "session"), str(Path(__file__).parent.parent / "interleavings"))
AGAIN = ("threading", "queue", "concurrent", "ebbpool")
"""What is imported anew, with all that is in it."""
BEGUN = 1000.0
LONGEST = 20_000
"""A run of so many lines does not end."""
EVER = 1e6
"""Who may wait for so many seconds waits for ever."""
REAL = 60.0
"""Seconds after which a run has left the scheduler's hands."""

Schedule = dict[int, int]
"""At which steps something else happens than the thread that runs going on, and which of what may happen."""


class Wrong(Exception):
    """What a run has come to that must not be."""


@dataclass(eq=False)
class Strand:
    """A thread: what it waits for, until when, and the real lock that it stands at while others run."""

    number: int
    name: str
    turn: Any = field(default_factory=_thread.allocate_lock)
    ready: Callable[[], bool] | None = None
    until: float | None = None
    ended: bool = False
    ident: int = 0

    def join(self) -> None:
        """Wait until the thread has ended."""
        run_now().wait(lambda: self.ended)

    def may_go_on(self, now: float) -> bool:
        return not self.ended and (self.ready is None or self.ready() or (self.until is not None and self.until <= now))


class Run:
    """One run of a model. What happens depends on the schedule alone.

    Attributes:
        counts: Whether `choices` and `meetings` are wanted.
        choices: The steps at which something else might have happened, and how many things.
        meetings: Those of these steps at which a thread takes or frees a lock, has to wait, or has just begun.
        open: Whether other things may happen now.
        jumps: Where nobody could go on until time had passed, while anything may happen, but for those that sleep.
        refusals: So many more threads cannot be started.
    """

    def __init__(self, schedule: Schedule, tells: bool, counts: bool) -> None:
        self.schedule = schedule
        self.tells = tells
        self.counts = counts
        self.story: list[str] = []
        self.last = max(schedule, default=-1)
        self.choices: list[tuple[int, int]] = []
        self.meetings: set[int] = set()
        self.open = False
        self.step = 0
        self.now = BEGUN
        self.jumps: list[str] = []
        self.refusals = 0
        self.strands: list[Strand] = []
        self.failure: str | None = None
        self.over = _thread.allocate_lock()
        self.over.acquire()

    def perform(self, model: Callable[[], object], jumps: int) -> None:
        """Run a model to its end, and all threads that it has led to; time may have to pass `jumps` times for that."""
        global _run

        def main() -> None:
            model()
            if len(self.jumps) > jumps:
                raise Wrong("nobody could go on until time had passed: " + "; ".join(self.jumps))
            self.wait(lambda: all(each.ended for each in self.strands[1:]))

        _run = self
        self.begin("main", main)
        self.current = self.strands[0]
        self.current.turn.release()
        if not self.over.acquire(timeout=REAL):
            self.failure = f"the scheduler has lost its thread:\n{self.places()}"
        _run = None

    def begin(self, name: str, call: Callable[[], object], end: Callable[[], object] = lambda: None) -> Strand:
        self.meetings.add(self.step + 1)
        strand = Strand(len(self.strands), name)
        strand.turn.acquire()
        self.strands.append(strand)

        calls = [call]
        del call

        def body() -> None:
            strand.turn.acquire()
            try:
                # What it refers to is dropped while this thread has its turn.
                calls.pop()()
            except BaseException:
                self.fail(traceback.format_exc())
            end()
            sys.modules["threading"]._active.pop(strand.ident, None)  # type: ignore[attr-defined]
            strand.ended = True
            if strand.number == 0:
                self.over.release()
            else:
                self.hand_over(self.choose(strand))

        strand.ident = _thread.start_new_thread(body, ())
        return strand

    def fail(self, why: str) -> None:
        """End the run; its threads stand still for good, and go with the process."""
        if self.failure is None:
            self.failure = why
            self.over.release()
        stuck = _thread.allocate_lock()
        stuck.acquire()
        stuck.acquire()

    def places(self) -> str:
        frames = sys._current_frames()
        told = []
        for each in self.strands:
            if not each.ended and each.ident in frames:
                stack = traceback.extract_stack(frames[each.ident])
                own = [line for line in stack if line.filename != __file__ or line.name == "main"]
                told.append(f"thread {each.number} ({each.name}):\n" + "".join(traceback.format_list(own[-6:])))
        return "\n".join(told)

    def others(self, strand: Strand) -> list[Strand]:
        """Return who may go on in place of a thread: in turn, and then those whose waits may end by their time."""
        count = len(self.strands)
        line = [self.strands[(strand.number + place) % count] for place in range(1, count)]
        ready = [each for each in line if each.may_go_on(self.now)]
        return ready + [each for each in line if not each.ended and each.until is not None and each not in ready]

    def at_line(self, code: types.CodeType, line: int) -> None:
        """Let another thread go on, if the schedule says so."""
        step = self.step = self.step + 1
        if step > self.last:
            if self.counts and self.open and (count := len(self.others(self.current))):
                self.choices.append((step, count))
            if step > LONGEST:
                self.fail(f"{LONGEST} lines, and no end:\n{self.places()}")
        elif step in self.schedule and (others := self.others(self.current)):
            self.tell(code, line)
            self.hand_over(others[self.schedule[step] % len(others)])

    def wait(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Have the thread that runs wait until something is so; return False if its time was over before."""
        strand = self.current
        strand.ready, strand.until = ready, None if timeout is None or timeout > EVER else self.now + timeout
        if self.tells:
            frame = sys._getframe(1)
            while frame.f_back and not frame.f_code.co_filename.startswith(str(PACKAGE)):
                frame = frame.f_back
            self.tell(frame.f_code, frame.f_lineno, "waits at ")
        self.hand_over(self.choose(strand))
        strand.ready = strand.until = None
        return ready()

    def choose(self, strand: Strand) -> Strand:
        """Return who goes on where one waits or has ended."""
        step = self.step = self.step + 1
        others = self.others(strand)
        if strand.may_go_on(self.now):
            others.insert(0, strand)
        elif strand.until is not None and not strand.ended:
            others.append(strand)
        if not others:
            self.fail(f"nobody can go on:\n{self.places()}")
        if self.counts and step > self.last and len(others) > 1 and self.open:
            self.choices.append((step, len(others) - 1))
            self.meetings.add(step)
        if step in self.schedule:
            return others[(1 + self.schedule[step]) % len(others)]
        if not others[0].may_go_on(self.now):
            others.sort(key=lambda each: each.until or 0.0)
            if self.open and others[0].ready is not never:
                self.jumps.append(f"at step {step} {others[0].name} waits {(others[0].until or 0.0) - self.now:g} s")
        return others[0]

    def hand_over(self, other: Strand) -> None:
        before, self.current = self.current, other
        if not other.may_go_on(self.now):
            assert other.until is not None
            # No wait ends at the very moment.
            self.now = max(self.now, other.until + 1e-6)
        if other is before:
            return
        other.turn.release()
        if not before.ended:
            before.turn.acquire()

    def tell(self, code: types.CodeType, line: int, how: str = "is held at ") -> None:
        if self.tells:
            text = linecache.getline(code.co_filename, line).strip()
            place = f"{Path(code.co_filename).name}:{line} {code.co_name}"
            self.story.append(f"step {self.step}: {self.current.number} ({self.current.name}) {how}{place}: {text}")


def never() -> bool:
    """Return False: what a thread that sleeps waits for."""
    return False


_run: Run | None = None


def run_now() -> Run:
    """Return the run that goes on."""
    assert _run is not None
    return _run


def _meet() -> None:
    if _run is not None:
        _run.meetings.add(_run.step)


class Lock:
    """What `_thread.allocate_lock` returns."""

    def __init__(self) -> None:
        self._held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        _meet()
        if self._held:
            if not blocking or timeout == 0 or not run_now().wait(self._is_free, None if timeout < 0 else timeout):
                return False
        self._held = True
        return True

    def _is_free(self) -> bool:
        return not self._held

    def release(self) -> None:
        if not self._held:
            raise RuntimeError("release unlocked lock")
        _meet()
        self._held = False

    def locked(self) -> bool:
        return self._held

    def _at_fork_reinit(self) -> None:
        self._held = False

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self.release()


class RLock(Lock):
    """What `_thread.RLock` is."""

    def __init__(self) -> None:
        super().__init__()
        self._owner = self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = _thread.get_ident()
        if self._owner != me:
            if not super().acquire(blocking, timeout):
                return False
            self._owner = me
        self._count += 1
        return True

    def release(self) -> None:
        if not self._is_owned():
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = 0
            super().release()

    def _is_owned(self) -> bool:
        return self._owner == _thread.get_ident()

    def _release_save(self) -> int:
        count, self._count = self._count, 1
        self.release()
        return count

    def _acquire_restore(self, count: int) -> None:
        self.acquire()
        self._count = count


class Handle:
    """What `_thread._ThreadHandle` is."""

    ident = 0
    done = False

    def is_done(self) -> bool:
        return self.done

    def _set_done(self) -> None:
        self.done = True

    def join(self, timeout: float | None = None) -> None:
        if not self.done:
            run_now().wait(self.is_done, None if timeout is None or timeout < 0 else timeout)


def _start(function: Callable[[], object], *, handle: Handle, daemon: bool) -> None:
    run = run_now()
    if run.refusals > 0:
        run.refusals -= 1
        raise RuntimeError("can't start new thread")
    owner: Any = getattr(function, "__self__", None)
    handle.ident = run.begin(getattr(owner, "name", "?"), function, handle._set_done).ident


def _made_handle(ident: int) -> Handle:
    handle = Handle()
    handle.ident = ident
    return handle


def _substitute(module: types.ModuleType, **others: Any) -> types.ModuleType:
    made = types.ModuleType(module.__name__)
    vars(made).update(vars(module))
    vars(made).update(others)
    return made


def _substitutes() -> dict[str, types.ModuleType | None]:
    def now() -> float:
        return BEGUN if _run is None else _run.now

    def no_clock(*args: object) -> float:
        raise OSError("there is no such clock")

    def sleep(seconds: float) -> None:
        run_now().wait(never, seconds)

    clocks = _substitute(time, monotonic=now, perf_counter=now, sleep=sleep, clock_gettime=no_clock)
    clocks.process_time = clocks.thread_time = lambda: 0.0
    # `ebbpool._clock` makes another instance of the module.
    clocks.__spec__ = types.SimpleNamespace(loader=types.SimpleNamespace(create_module=lambda spec: clocks))
    threads = _substitute(_thread, allocate_lock=Lock, LockType=Lock, lock=Lock, RLock=RLock, _ThreadHandle=Handle)
    threads.start_joinable_thread, threads._make_thread_handle = _start, _made_handle
    return {"_thread": threads, "time": clocks, "_queue": None}


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module of ebbpool with some of its text replaced."""

    patches: Sequence[tuple[str, str, str]] = ()

    def get_code(self, fullname: str) -> types.CodeType:
        text = Path(self.path).read_text(encoding="utf-8")
        for name, old, new in self.patches:
            if fullname == f"ebbpool.{name}":
                assert text.count(old) == 1, f"{name} has {text.count(old)} times: {old}"
                text = text.replace(old, new)
        return compile(text, self.path, "exec", dont_inherit=True)


@contextmanager
def engine(*patches: tuple[str, str, str]) -> Iterator[Any]:
    """Import ebbpool anew for runs in this block: each patch is a module, a text in it, and what is in its place."""

    class Finder:
        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
            if not name.startswith("ebbpool"):
                return None
            spec: Any = importlib.machinery.PathFinder.find_spec(name, path)
            if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
                spec.loader = _Loader(name, spec.origin)
                spec.loader.patches = patches
            return spec

    anew = [name for name in sys.modules if name.split(".")[0] in AGAIN]
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(sys.modules, _substitutes()))
        for name in anew:
            del sys.modules[name]
        stack.enter_context(mock.patch.object(sys, "meta_path", [Finder, *sys.meta_path]))
        stack.enter_context(mock.patch.dict(os.environ, {"EBBPOOL_PURE": "1"}))
        stack.enter_context(mock.patch.object(os, "sched_getaffinity", return_value={0, 1}, create=True))
        stack.enter_context(mock.patch.object(os, "register_at_fork", create=True))
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        again: Any = importlib.import_module("threading")
        # What it makes takes a lock after a thread's last turn.
        again._DeleteDummyThreadOnDel = lambda dummy: None
        again.excepthook = lambda told: run_now().fail("".join(traceback.format_exception(told.exc_value)))
        yield importlib.import_module("ebbpool")


class _Complaints(logging.Handler):
    def handle(self, record: logging.LogRecord) -> bool:
        # In place of `emit`, which is called with a lock: a run that fails stands still here.
        if _run is not None and record.levelno >= logging.ERROR:
            _run.fail(f"it was logged: {record.getMessage()}\n{traceback.format_exc() if record.exc_info else ''}")
        return False


@contextmanager
def watched() -> Iterator[None]:
    """Have runs in this block see each line of the engine, and what it logs."""
    tool, monitoring, get_ident = 4, sys.monitoring, _thread.get_ident
    engines: dict[str, bool] = {}

    def at_line(code: types.CodeType, line: int) -> Any:
        name = code.co_filename
        if name not in engines:
            engines[name] = name.startswith(ENGINE)
        if not engines[name]:
            return monitoring.DISABLE
        if _run is not None and _run.current.ident == get_ident():
            _run.at_line(code, line)
        return None

    complaints = _Complaints()
    logger = logging.getLogger("concurrent.futures")
    logger.addHandler(complaints)
    monitoring.use_tool_id(tool, "interleavings")
    monitoring.register_callback(tool, monitoring.events.LINE, at_line)
    monitoring.set_events(tool, monitoring.events.LINE)
    try:
        yield
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)
        logger.removeHandler(complaints)


Model = Callable[[Any], object]


def run(model: Model, ebbpool: Any, schedule: Schedule, *, tells: bool = False, counts: bool = False) -> Run:
    """Run a model once, and return what came of it."""
    made = Run(schedule, tells, counts)
    made.perform(lambda: model(ebbpool), getattr(model, "jumps", 0))
    return made


def explore(model: Model, ebbpool: Any, randomly: int, seed: int, pairs: bool = False) -> Iterator[Run]:
    """Yield the runs of a model where threads go on as they may, those in which one step is another, then random ones.

    With `pairs` also all in which two are others, both where threads meet. The collector is to be off.
    """
    yield (plain := run(model, ebbpool, {}, counts=True))
    at_meetings = []
    for step, count in plain.choices:
        for choice in range(count):
            yield (single := run(model, ebbpool, {step: choice}, counts=pairs))
            if pairs and step in plain.meetings:
                at_meetings.append(single)
    rng = random.Random(seed)
    for _ in range(randomly):
        steps = rng.sample(range(plain.choices[0][0], plain.choices[-1][0] + 1), rng.choice((2, 2, 3, 4, 6)))
        yield run(model, ebbpool, {step: rng.randrange(4) for step in steps})
    for single in at_meetings:
        for step, count in single.choices:
            for choice in range(count if step in single.meetings else 0):
                yield run(model, ebbpool, {**single.schedule, step: choice})
