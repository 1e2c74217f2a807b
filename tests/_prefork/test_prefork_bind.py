"""What `prefork.run` refuses before it starts anything, and where it listens."""

from __future__ import annotations

import errno
import functools
import logging
import multiprocessing
import os
import re
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

if os.name != "posix":
    pytest.skip("nothing can be forked", allow_module_level=True)

from support.common import TIMEOUT, Background, output_of, run_script
from support.prefork import binding, child, skip_without_ipv6, template

from ebbpool import prefork

HERE = ("127.0.0.1", 0)


def serve(child: prefork.Child) -> None:
    raise AssertionError("no child is to be started")


@pytest.fixture(autouse=True)
def no_child_is_started() -> Iterator[None]:
    yield
    assert not multiprocessing.active_children()


def connect(listener: socket.socket) -> None:
    """Connect to `listener`, which accepts."""
    with socket.socket(listener.family) as client:
        client.settimeout(TIMEOUT)
        client.connect(listener.getsockname())
        listener.settimeout(TIMEOUT)
        listener.accept()[0].close()
        listener.setblocking(False)


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"serve": "serve"}, TypeError, "serve must be callable, not 'serve'"),
        ({"serve": lambda child: None}, TypeError, "serve must be picklable"),
        ({"serve": functools.partial(serve, threading.Lock())}, TypeError, "serve must be picklable"),
        ({"processes": 0}, ValueError, "processes must be greater than 0, not 0"),
        ({"processes": "2"}, TypeError, "processes must be an integer, not '2'"),
        ({"backlog": 0}, ValueError, "backlog must be greater than 0, not 0"),
        ({"graceful_timeout": -1}, ValueError, "graceful_timeout must be at least 0 seconds, not -1"),
        ({"heartbeat_timeout": "1"}, TypeError, "heartbeat_timeout must be a number of seconds, not '1'"),
        ({"start_timeout": 0.0}, ValueError, "start_timeout must be greater than 0 seconds, not 0.0"),
        ({"preload": "json"}, TypeError, "preload must be True or False, not 'json'"),
        ({"bind": 8000}, TypeError, "bind must be .*, not 8000"),
        ({"bind": ("127.0.0.1",)}, TypeError, "bind must be"),
        ({"bind": (None, 1)}, TypeError, "bind must have a string for its host, not None"),
        ({"bind": ("", "80")}, TypeError, "bind must have an integer for its port, not '80'"),
        ({"bind": ("", True)}, TypeError, "bind must have an integer for its port, not True"),
        ({"bind": ("", 65536)}, ValueError, "bind must have a port of 0 to 65535, not 65536"),
        ({"bind": "localhost:80"}, TypeError, "bind must be .*, not 'localhost:80'"),
        ({"bind": "unix:"}, ValueError, "bind must"),
        ({"bind": ("a..b", 80)}, ValueError, r"bind must have a name that can be encoded, not 'a\.\.b:80'"),
        ({"bind": "unix:\ud800"}, ValueError, r"can be encoded, not 'unix:\\ud800'"),
    ],
)
def test_a_bad_argument_is_named(settings: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        prefork.run(**{"serve": serve, "bind": HERE, **settings})


def test_only_the_main_thread_may_run_it() -> None:
    with pytest.raises(RuntimeError, match="main thread"):
        Background(lambda: prefork.run(serve, bind=HERE)).join()


def test_a_child_that_imports_the_main_module_may_not_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "current_process", lambda: SimpleNamespace(_inheriting=True))
    with pytest.raises(RuntimeError, match="__name__ == '__main__'"):
        prefork.run(serve, bind=HERE)


def test_serve_has_to_be_where_another_process_finds_it() -> None:
    done = run_script("""
        from ebbpool import prefork

        def serve(child): ...

        prefork.run(serve, bind=("127.0.0.1", 0))
    """)
    assert "ValueError: serve must be in a module that another process can import" in done.stderr


class TestAddresses:
    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "", "::1", "::ffff:127.0.0.1"])
    def test_a_port_is_found_and_listened_on(self, host: str) -> None:
        if ":" in host:
            skip_without_ipv6()
        with binding.listening((host, 0), 16) as listener:
            assert not listener.getblocking() and not listener.get_inheritable()
            assert binding.shown(listener).endswith(f":{listener.getsockname()[1]}")
            assert host or listener.family == socket.AF_INET
            assert (listener.family == socket.AF_INET6) == binding.shown(listener).startswith("[::")
            connect(listener)
        assert listener.fileno() == -1

    def test_a_port_that_is_taken_is_an_error_with_its_name(self) -> None:
        with socket.create_server(HERE) as other:
            bind = other.getsockname()
            named = f"cannot listen on '127.0.0.1:{bind[1]}'.*[Aa]ddress already in use"
            with pytest.raises(OSError, match=named) as caught:
                prefork.run(serve, bind=bind)
        assert caught.value.errno == errno.EADDRINUSE

    def test_a_host_that_does_not_exist_is_an_error_with_its_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def unknown(*args: Any, **settings: Any) -> None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr(socket, "getaddrinfo", unknown)
        with pytest.raises(OSError, match="cannot listen on 'nowhere:80': Name or service not known"):
            prefork.run(serve, bind=("nowhere", 80))


class TestOwnSocket:
    def test_a_socket_has_to_be_an_open_stream_that_is_bound(self) -> None:
        with socket.socket() as unbound, socket.socket(type=socket.SOCK_DGRAM) as datagrams, socket.socket() as closed:
            closed.close()
            for bad, text in ((unbound, "a socket that is bound"), (datagrams, "a stream"), (closed, "an open socket")):
                with pytest.raises(ValueError, match=f"bind must be {text}"):
                    prefork.run(serve, bind=bad)

    def test_a_socket_is_listened_on_and_left_open(self) -> None:
        with socket.socket() as bound:
            bound.bind(HERE)
            with binding.listening(bound, 16) as listener:
                assert listener is bound and not bound.getblocking()
                connect(bound)
            assert bound.fileno() >= 0


class TestUnix:
    @pytest.fixture(autouse=True)
    def short_paths(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    def test_its_file_replaces_a_stale_one_and_is_removed_at_the_end(self) -> None:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind("s")
        with binding.listening("unix:s", 16) as listener:
            assert Path("s").is_socket() and binding.shown(listener) == "unix:s"
            connect(listener)
        assert not Path("s").exists()

    @pytest.mark.parametrize(
        ("path", "text", "number"),
        [
            ("live", "already listening", errno.EADDRINUSE),
            ("diary", "a file that is not a socket", errno.EEXIST),
            ("none/s", "No such file", errno.ENOENT),
            ("x" * 200, "too long", errno.ENAMETOOLONG),
        ],
        ids=["live", "diary", "no folder", "too long"],
    )
    def test_what_cannot_be_its_file_is_named_and_left_alone(self, path: str, text: str, number: int) -> None:
        Path("diary").write_text("dear diary")
        with socket.socket(socket.AF_UNIX) as live:
            live.bind("live")
            live.listen()
            with pytest.raises(OSError, match=f"cannot listen on 'unix:{path}': .*{text}") as caught:
                prefork.run(serve, bind=f"unix:{path}")
            assert caught.value.errno == number and Path("live").is_socket()
        assert Path("diary").read_text() == "dear diary"

    @pytest.mark.parametrize(("mode", "bits"), [("660", 0o660), ("0606", 0o606)])
    def test_its_mode_says_who_may_connect_whatever_the_umask(self, mode: str, bits: int) -> None:
        before = os.umask(0o077)
        try:
            with binding.listening(f"unix:s?mode={mode}", 16) as listener:
                assert stat.S_IMODE(os.stat("s").st_mode) == bits
                assert binding.shown(listener) == "unix:s"
                connect(listener)
            assert os.listdir() == []
        finally:
            os.umask(before)

    @pytest.mark.parametrize("mode", ["", "6", "888", "rw", "1660", "66o", "-660", "660 "])
    def test_a_bad_mode_is_named(self, mode: str) -> None:
        wanted = f"bind must have an octal mode of 000 to 777, not {mode!r} in 'unix:s?mode={mode}'"
        with pytest.raises(ValueError, match=re.escape(wanted)):
            prefork.run(serve, bind=f"unix:s?mode={mode}")

    def test_a_file_that_somebody_else_put_in_its_place_stays(self) -> None:
        with socket.socket(socket.AF_UNIX) as successor:
            with binding.listening("unix:s", 16):
                os.rename("s", "old")
                successor.bind("s")
            assert Path("s").is_socket()


def test_log_lines_are_pairs_and_records_have_them_as_attributes(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ebbpool.prefork"):
        child.log(logging.INFO, "child_ready", pid=12, seconds=0.5, error="it's no use", n="")
    (record,) = caplog.records
    assert record.getMessage() == """event=child_ready pid=12 seconds=0.5 error="it's no use" n=''"""
    assert (record.__dict__["event"], record.__dict__["pid"], record.__dict__["seconds"]) == ("child_ready", 12, 0.5)


def test_what_every_template_imports_starts_no_thread() -> None:
    assert output_of(f"import threading, {', '.join(template.OURS)}; print(threading.active_count())") == ["1"]
