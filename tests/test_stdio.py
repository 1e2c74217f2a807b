"""Standard streams that nobody reads: nobody waits, what is lost is counted, and a file stays a file."""

from __future__ import annotations

import io
import logging
import os
import signal
import subprocess
import sys
import termios
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.common import TIMEOUT, Background, needs_fork, no_thread, run_script
from support.prefork import fill

from ebbpool import _stdio
from ebbpool._stdio import Overflow, unhindered

pytestmark = pytest.mark.skipif(os.name != "posix", reason="streams are left as they are there")

LINE = b"0123456789abcdef\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(writer)
    os.close(reader)


@pytest.fixture
def full(pipe: tuple[int, int]) -> tuple[int, int]:
    """Both ends of a pipe that takes no more, and into which the writing end waits."""
    fill(pipe[1])
    return pipe


def read_until(reader: int, end: bytes) -> bytes:
    def read() -> bytes:
        received = bytearray()
        while not received.endswith(end):
            piece = os.read(reader, 65536)
            assert piece, received
            received += piece
        return bytes(received)

    result: bytes = Background(read).join()
    return result


@contextmanager
def overflow(writer: int, held: int = 1024) -> Iterator[Overflow]:
    stream = Overflow(writer, "stderr", held)
    try:
        yield stream
    finally:
        stream.end()


def test_what_is_written_comes_out_in_order(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    with overflow(writer) as stream:
        for number in range(10):
            assert stream.write(b"%d\n" % number) == 2
            assert stream.drain(TIMEOUT)
        assert os.read(reader, 1000) == b"".join(b"%d\n" % number for number in range(10))
        assert stream.fileno() == writer and stream.writable() and not stream.isatty()


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize(
    ("pieces", "received", "told"),
    [
        ([LINE] * 100, LINE * 10, b"ebbpool: 90 lines were dropped here because nobody read stderr\n"),
        ([LINE] * 10, LINE * 10, b""),
        ([LINE * 30, b"half a line"], LINE * 30, b"ebbpool: 1 line was dropped here because nobody read stderr\n"),
    ],
    ids=["too much", "just enough", "a piece larger than all the room"],
)
def test_a_full_pipe_holds_nobody_up_and_what_was_dropped_is_counted(
    full: tuple[int, int], pieces: list[bytes], received: bytes, told: bytes, blocking: bool
) -> None:
    reader, writer = full
    # Somebody else may have made it non-blocking.
    os.set_blocking(writer, blocking)
    with overflow(writer, 10 * len(LINE)) as stream:
        for piece in pieces:
            stream.write(piece)
        assert not stream.drain(0)
        assert read_until(reader, received + told).lstrip(b".") == received + told
        # From here on it is as if nothing had happened.
        assert stream.drain(TIMEOUT)
        stream.write(b"the end\n")
        assert read_until(reader, b"\n") == b"the end\n"


def test_a_terminal_that_was_stopped_goes_on() -> None:
    keyboard, terminal = os.openpty()
    try:
        attributes = termios.tcgetattr(terminal)
        attributes[1] &= ~termios.OPOST
        termios.tcsetattr(terminal, termios.TCSANOW, attributes)
        with overflow(terminal, 10 * len(LINE)) as stream:
            assert stream.isatty()
            termios.tcflow(terminal, termios.TCOOFF)
            for _ in range(100):
                stream.write(LINE)
            assert not stream.drain(0.01)
            termios.tcflow(terminal, termios.TCOON)
            assert read_until(keyboard, b"stderr\n").startswith(LINE * 10)
            assert stream.drain(TIMEOUT)
    finally:
        os.close(terminal)
        os.close(keyboard)


def test_a_pipe_without_a_reader() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with overflow(writer) as stream:
        stream.write(LINE)
        assert stream.drain(TIMEOUT)
    os.close(writer)


def test_what_a_signal_handler_writes_in_the_midst_of_a_write_holds_nothing_up(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    with overflow(writer) as stream:
        before = signal.signal(signal.SIGALRM, lambda number, frame: stream.write(b"alarm\n"))
        try:
            with stream._changed:
                signal.raise_signal(signal.SIGALRM)
            assert stream.drain(TIMEOUT)
        finally:
            signal.signal(signal.SIGALRM, before)
    assert os.read(reader, 100) == b"alarm\n"


@contextmanager
def standing_in(monkeypatch: pytest.MonkeyPatch, number: int) -> Iterator[io.TextIOWrapper]:
    """Have `sys.stderr` write to a descriptor, as the interpreter's own does."""
    with open(number, "w", buffering=1, closefd=False) as stream:
        assert type(stream) is io.TextIOWrapper
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(sys, "stdout", None)
        yield stream


def test_streams_and_handlers_are_replaced_for_as_long_as_it_takes(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("test_stdio.handlers")
    logger.propagate = False
    reader, writer = pipe
    with standing_in(monkeypatch, writer) as stream:
        handler = logging.StreamHandler()
        logger.addHandler(handler)
        try:
            with unhindered():
                assert sys.stderr is not stream and handler.stream is sys.stderr
                assert sys.stderr.fileno() == writer and sys.stderr.encoding == stream.encoding
                ours = sys.stderr
                with unhindered():
                    assert sys.stderr is ours
                logger.warning("by the logger")
                print("by hand", file=sys.stderr, end="")
            assert sys.stderr is stream and handler.stream is stream
            assert os.read(reader, 100) == b"by the logger\nby hand"
            ours.write("late\n")
            assert os.read(reader, 100) == b"late\n"
        finally:
            logger.removeHandler(handler)


def test_a_stream_that_still_cannot_be_written_to_stays_replaced(
    full: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_stdio, "LAST_WORDS", 0.01)
    reader, writer = full
    with standing_in(monkeypatch, writer) as stream:
        with unhindered():
            print("lost", file=sys.stderr)
        assert sys.stderr is not stream
        print("lost as well", file=sys.stderr)
        overflow = sys.stderr.buffer
        assert isinstance(overflow, Overflow)
        assert read_until(reader, b"as well\n").endswith(b"lost\nlost as well\n")
        assert overflow.drain(TIMEOUT)
        overflow.end()


def test_what_cannot_keep_anybody_waiting_is_left_alone(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Special(io.TextIOWrapper): ...

    with (
        open(os.devnull, "w") as nowhere,
        (tmp_path / "log").open("w") as file,
        Special(open(pipe[1], "wb", closefd=False)) as special,
        io.StringIO() as text,
    ):
        closed = (tmp_path / "closed").open("w")
        closed.close()
        for stream in (None, nowhere, file, special, text, closed):
            monkeypatch.setattr(sys, "stderr", stream)
            with unhindered():
                assert sys.stderr is stream


def test_a_thread_that_cannot_be_had_leaves_things_as_they_are(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with standing_in(monkeypatch, pipe[1]) as stream:
        monkeypatch.setattr("threading.Thread.start", no_thread)
        with unhindered():
            assert sys.stderr is stream


@needs_fork
def test_a_forked_process_writes_for_itself() -> None:
    done = run_script("""
        import os, sys
        from ebbpool._stdio import unhindered

        with unhindered():
            print("parent", file=sys.stderr)
            pid = os.fork()
            if not pid:
                print("child", file=sys.stderr)
                sys.stderr.buffer.drain(0)
                os._exit(0)
            os.waitpid(pid, 0)
    """)
    assert done.returncode == 0
    assert sorted(done.stderr.splitlines()) == ["child", "parent"]


def test_a_process_that_cannot_say_its_last_words_ends(full: tuple[int, int]) -> None:
    """Nor does a thread that waits for the pipe keep the interpreter from its end, nor does it end with an error."""
    script = """
        import logging, sys
        from ebbpool import _stdio

        _stdio.LAST_WORDS = 0.01
        logging.basicConfig()
        with _stdio.unhindered():
            logging.warning("lost")
            print("lost", file=sys.stderr)
        logging.warning("lost, too")
        print("lost, too", file=sys.stderr)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stderr=full[1]) as process:
        try:
            assert process.wait(4 * TIMEOUT) == 0
        finally:
            process.kill()
