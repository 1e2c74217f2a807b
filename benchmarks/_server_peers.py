"""The rivals that are servers: by question, the program that each of them runs in a process of its own."""

from __future__ import annotations

import os
import shutil

from benchmarks._peer import Peer, Unavailable, core_is

NGINX_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])
"""Where nginx is looked for: Debian puts it where only the administrator looks."""

_SERVER_ONLY = {"*": "a server: see the questions about servers"}


def _tcp(way: str, workers: int = 200) -> dict[str, tuple[str, ...]]:
    """The server programs of `server_sizes` and `waiting`; of a pool, with so many threads at most."""
    program = ("benchmarks._tcp_servers", way, "--workers")
    return {"server_sizes": (*program, str(workers)), "waiting": (*program, str(workers))}


def _only(question: str, programs: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return {question: programs[question]}


_TCP_PEERS = (
    Peer(
        "tcp-sequential",
        "TCPServer, no threads (floor)",
        listens=_only("server_sizes", _tcp("sequential")),
        against=_SERVER_ONLY,
    ),
    Peer(
        "tcp-ebbpool",
        "ebbpool AdaptivePoolTCPServer (compiled)",
        ("ebbpool.socketserver",),
        "ebbpool",
        listens=_tcp("adaptive", 256) | _only("server_sizes", _tcp("adaptive")),
        check=lambda: core_is(True),
        against=_SERVER_ONLY,
    ),
    Peer(
        "tcp-ebbpool-pure",
        "ebbpool AdaptivePoolTCPServer (plain)",
        ("ebbpool.socketserver",),
        "ebbpool",
        listens=_tcp("adaptive", 256) | _only("server_sizes", _tcp("adaptive")),
        env={"EBBPOOL_PURE": "1"},
        check=lambda: core_is(False),
        against=_SERVER_ONLY,
    ),
    Peer("tcp-threading", "ThreadingMixIn (a thread a connection)", listens=_tcp("threading"), against=_SERVER_ONLY),
    Peer("tcp-executor", "ThreadPoolExecutor(200) as a mix-in", listens=_tcp("executor"), against=_SERVER_ONLY),
    Peer(
        "tcp-executor-20",
        "ThreadPoolExecutor(20) as a mix-in",
        listens=_only("waiting", _tcp("executor", 20)),
        against=_SERVER_ONLY,
    ),
    Peer("tcp-2008", "the rule of 2008 (2, 200, 20)", listens=_tcp("rule-2008"), against=_SERVER_ONLY),
    Peer(
        "tcp-gevent",
        "gevent StreamServer (a greenlet a connection)",
        ("gevent.server",),
        "gevent",
        listens=_only("waiting", _tcp("gevent")),
        against=_SERVER_ONLY,
    ),
)


def _echo(*arguments: str) -> dict[str, tuple[str, ...]]:
    return {"echo": ("benchmarks._echo_servers", *arguments)}


def _echo_on_a_loop(loop: str, kind: str, label: str) -> Peer:
    own = loop == "asyncio"
    return Peer(
        f"echo-{loop}-{kind}",
        f"{loop}, {label}",
        () if own else (loop,),
        "" if own else loop,
        listens=_echo(kind, "--loop", loop),
        against=_SERVER_ONLY,
    )


_ECHO_PEERS = (
    Peer(
        "echo-pool",
        "threads on ebbpool (compiled)",
        ("ebbpool.socketserver",),
        "ebbpool",
        listens=_echo("pool"),
        check=lambda: core_is(True),
        against=_SERVER_ONLY,
    ),
    Peer(
        "echo-pool-pure",
        "threads on ebbpool (plain)",
        ("ebbpool.socketserver",),
        "ebbpool",
        listens=_echo("pool"),
        env={"EBBPOOL_PURE": "1"},
        check=lambda: core_is(False),
        against=_SERVER_ONLY,
    ),
    Peer("echo-threading", "ThreadingMixIn, the same handler", listens=_echo("threading"), against=_SERVER_ONLY),
    *(
        _echo_on_a_loop(loop, kind, label)
        for loop in ("asyncio", "uvloop")
        for kind, label in (("streams", "streams"), ("protocol", "protocol"), ("buffered", "buffered protocol"))
    ),
)


def _slow(kind: str) -> dict[str, tuple[str, ...]]:
    return {"slow_clients": ("benchmarks._slow_servers", kind)}


_FLASK = ("ebbpool.aio", "flask", "a2wsgi", "uvicorn", "h11")

_SLOW_PEERS = (
    Peer(
        "slow-adaptive",
        "ebbpool AdaptivePoolHTTPServer",
        ("ebbpool.socketserver",),
        "ebbpool",
        listens=_slow("adaptive"),
        check=lambda: core_is(True),
        against=_SERVER_ONLY,
    ),
    Peer(
        "slow-plain-front",
        "asyncio.start_server and pool.run",
        ("ebbpool.aio", "h11"),
        "ebbpool",
        listens=_slow("plain-front"),
        check=lambda: core_is(True),
        against=_SERVER_ONLY,
    ),
    Peer(
        "slow-flask-front",
        "Flask, a2wsgi, bodies read first, uvicorn",
        _FLASK,
        "a2wsgi",
        listens=_slow("flask-front"),
        check=lambda: core_is(True),
        against=_SERVER_ONLY,
    ),
    Peer(
        "slow-flask-front-bare",
        "Flask, a2wsgi, uvicorn",
        _FLASK,
        "a2wsgi",
        listens=_slow("flask-front-bare"),
        check=lambda: core_is(True),
        against=_SERVER_ONLY,
    ),
    Peer("slow-threads", "ThreadingHTTPServer", listens=_slow("threads"), against=_SERVER_ONLY),
    Peer("slow-fixed-20", "HTTPServer on 20 threads", listens=_slow("fixed-20"), against=_SERVER_ONLY),
    Peer("slow-fixed-200", "HTTPServer on 200 threads", listens=_slow("fixed-200"), against=_SERVER_ONLY),
    Peer(
        "slow-gevent",
        "gevent pywsgi",
        ("gevent.pywsgi",),
        "gevent",
        listens=_slow("gevent"),
        against=_SERVER_ONLY,
    ),
)


def _web(*arguments: str, questions: tuple[str, ...] = ("web_server",)) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(questions, ("benchmarks._web_servers", *arguments))


def _nginx_is_there() -> None:
    if shutil.which("nginx", path=NGINX_PATH) is None:
        raise Unavailable("nginx is not installed")


def _forks() -> None:
    if not hasattr(os, "fork"):
        raise Unavailable("no fork on this system")


_BOTH = ("web_server", "kill_child")

_WEB_PEERS = (
    Peer("web-threading", "ThreadingHTTPServer (a thread a request)", listens=_web("threading"), against=_SERVER_ONLY),
    Peer(
        "web-pool",
        "ebbpool AdaptivePoolHTTPServer (compiled)",
        ("ebbpool.socketserver",),
        "ebbpool",
        listens=_web("pool"),
        check=lambda: core_is(True),
        against=_SERVER_ONLY,
    ),
    Peer(
        "web-pool-pure",
        "ebbpool AdaptivePoolHTTPServer (plain)",
        ("ebbpool.socketserver",),
        "ebbpool",
        listens=_web("pool"),
        env={"EBBPOOL_PURE": "1"},
        check=lambda: core_is(False),
        against=_SERVER_ONLY,
    ),
    Peer(
        "web-prefork",
        "ebbpool prefork, one listener",
        ("ebbpool.prefork", "ebbpool.socketserver"),
        "ebbpool",
        listens=_web("prefork", questions=_BOTH),
        check=lambda: core_is(True),
        against=_SERVER_ONLY,
    ),
    Peer(
        "web-prefork-reuse-port",
        "ebbpool prefork, reuse_port",
        ("ebbpool.prefork", "ebbpool.socketserver"),
        "ebbpool",
        listens=_web("prefork", "--reuse-port", questions=_BOTH),
        check=lambda: core_is(True),
        against=_SERVER_ONLY,
    ),
    Peer(
        "web-gunicorn",
        "gunicorn, gthread",
        ("gunicorn",),
        "gunicorn",
        listens=_web("gunicorn", questions=("kill_child",)),
        check=_forks,
        against=_SERVER_ONLY,
    ),
    Peer("web-nginx", "nginx (ceiling)", listens=_web("nginx"), check=_nginx_is_there, against=_SERVER_ONLY),
)

SERVER_PEERS: tuple[Peer, ...] = (*_TCP_PEERS, *_ECHO_PEERS, *_SLOW_PEERS, *_WEB_PEERS)
