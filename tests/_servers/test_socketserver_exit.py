"""Servers when the main thread ends, and when a handler forks: in interpreters of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.common import needs_fork, needs_stacks, output_of

STARTS_NO_THREAD = sys.version_info[:2] == (3, 12)
"""CPython 3.12 starts no thread once it has begun to exit."""
EXIT = """
    import socket, socketserver, sys, threading
    from concurrent.futures import ThreadPoolExecutor
    from ebbpool import AdaptiveExecutor
    from ebbpool._servers import serve_loop
    from ebbpool.socketserver import AdaptivePoolHTTPServer, AdaptivePoolTCPServer

    # A thread may take longer than a second to begin the loop.
    serve_loop.START_UP = 10.0

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            line = self.rfile.readline()
            if b"stop" in line:
                self.server.shutdown()
            self.wfile.write(b"served")

    def asked(server, line=b"GET / HTTP/1.0"):
        with socket.create_connection(server.server_address) as client:
            client.sendall(line + b"\\r\\n\\r\\n")
            return client.recv(100).decode()

    exiting = threading.Event()
    # Called before the package's own hook, which was registered earlier.
    threading._register_atexit(exiting.set)

    def after_main():
        exiting.wait(10)
        for _ in range(3):
            print(asked(server), flush=True)
"""


@pytest.mark.skipif(STARTS_NO_THREAD, reason="the server could start no worker")
@pytest.mark.parametrize("base", ["AdaptivePoolTCPServer", "AdaptivePoolHTTPServer"])
@pytest.mark.parametrize("executor", ["None", "AdaptiveExecutor()", "ThreadPoolExecutor()"])
def test_a_loop_that_is_no_daemon_serves_on_after_the_main_thread(base: str, executor: str) -> None:
    lines = output_of(
        f"""
        class Server({base}):
            executor = {executor}
        server = Server(("127.0.0.1", 0), Handler)
        def end():
            after_main()
            server.shutdown()
        threading.Thread(target=end, daemon=True).start()
        threading.Thread(target=server.serve_forever).start()
        """,
        EXIT,
    )
    assert lines == ["served"] * 3


@pytest.mark.skipif(STARTS_NO_THREAD, reason="the server could start no worker")
def test_a_handler_may_end_a_loop_that_outlasts_the_main_thread() -> None:
    lines = output_of(
        """
        server = AdaptivePoolTCPServer(("127.0.0.1", 0), Handler)
        def end():
            after_main()
            asked(server, b"stop")
        def serve():
            server.serve_forever()
            server.server_close()
            print("closed", flush=True)
        threading.Thread(target=end, daemon=True).start()
        threading.Thread(target=serve).start()
        """,
        EXIT,
    )
    assert lines == ["served"] * 3 + ["closed"]


@needs_stacks
def test_a_thread_that_waits_for_the_main_thread_may_end_a_loop() -> None:
    lines = output_of(
        """
        server = AdaptivePoolTCPServer(("127.0.0.1", 0), Handler)
        def end():
            threading.main_thread().join()
            server.shutdown()
            print("shut down")
        threading.Thread(target=end).start()
        threading.Thread(target=server.serve_forever).start()
        """,
        EXIT,
    )
    assert lines == ["shut down"]


def test_a_loop_in_a_daemon_thread_ends_before_its_pool() -> None:
    lines = output_of(
        """
        ended, begun = threading.Event(), threading.Event()
        class Waiting(socketserver.BaseRequestHandler):
            def handle(self):
                begun.set()
                print(ended.wait(10), flush=True)
        server = AdaptivePoolTCPServer(("127.0.0.1", 0), Waiting)
        def serve():
            server.serve_forever(3600)
            ended.set()
        threading.Thread(target=serve, daemon=True).start()
        client = socket.create_connection(server.server_address)
        begun.wait(10)
        """,
        EXIT,
    )
    assert lines == ["True"]


def test_which_threads_and_loops_the_exit_waits_for() -> None:
    lines = output_of(
        """
        from ebbpool._servers.serve_loop import _may_begin
        gate, begun = threading.Event(), threading.Semaphore(0)
        def hold():
            begun.release()
            gate.wait(10)
        pool, server = AdaptiveExecutor(), AdaptivePoolTCPServer(("127.0.0.1", 0), Handler)
        loop = server._loop
        pool.submit(hold)
        begun.acquire(timeout=10)
        print(loop.expected, _may_begin())
        other = threading.Thread(target=hold)
        other.start()
        begun.acquire(timeout=10)
        print(_may_begin())
        for daemon in (False, True):
            told, turned = AdaptivePoolTCPServer(("127.0.0.1", 0), Handler), threading.Event()
            told.service_actions = turned.set
            serving = threading.Thread(target=told.serve_forever, args=(0.01,), daemon=daemon)
            serving.start()
            turned.wait(10)
            print(told._loop.expected, told._loop.outlasts_main())
            told.shutdown()
            serving.join()
            print(told._loop.outlasts_main())
            told.server_close()
        server.server_close()
        print(_may_begin())
        gate.set()
        """,
        EXIT,
    )
    assert lines == ["True False", "True", "False True", "False", "False False", "False", "False"]


@needs_fork
@pytest.mark.parametrize("base", ["AdaptivePoolTCPServer", "AdaptivePoolHTTPServer"])
@pytest.mark.parametrize("end", ["pass", "raise SystemExit(3)"])
def test_a_process_that_a_handler_forks_ends_with_the_handler(base: str, end: str) -> None:
    lines = output_of(
        f"""
        import os
        class Forking(Handler):
            def handle(self):
                self.rfile.readline()
                child = os.fork()
                if child == 0:
                    print("in the child")
                    {end}
                else:
                    self.wfile.write(b"%d" % child)
        class Server({base}):
            keep_alive = 600
            def handle_error(self, request, client_address):
                pass
        server = Server(("127.0.0.1", 0), Forking)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        child = int(asked(server))
        tick = threading.Event()
        for _ in range(5000):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                print(status)
                break
            tick.wait(0.001)
        else:
            os.kill(child, 9)
            os.waitpid(child, 0)
        server.shutdown()
        thread.join()
        server.server_close()
        """,
        EXIT,
    )
    assert lines == ["in the child", "0"]


@needs_fork
def test_a_forked_child_has_no_loop_whose_thread_stayed_with_the_parent() -> None:
    lines = output_of(
        """
        import os
        server = AdaptivePoolTCPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        asked(server)
        child = os.fork()
        if child == 0:
            os._exit(40 + server._loop.runs)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), server._loop.runs)
        server.shutdown()
        thread.join()
        server.server_close()
        """,
        EXIT,
    )
    assert lines == ["40 True"]


def test_a_server_does_not_keep_the_interpreter_from_its_end() -> None:
    script = (
        "import socketserver, threading, time; from ebbpool.socketserver import AdaptivePoolTCPServer as Server\n"
        "class Hanging(socketserver.BaseRequestHandler):\n"
        "    def handle(self): begun.set(); time.sleep(600)\n"
        "class Daemonic(Server): daemon_threads = True\n"
        "begun = threading.Event(); server = Daemonic(('127.0.0.1', 0), Hanging)\n"
        "threading.Thread(target=server.serve_forever, daemon=True).start()\n"
        "import socket; client = socket.create_connection(server.server_address); begun.wait(); print('ends')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr
