"""Puts server classes in the place of the standard library's, and counts the servers that tests make.

Nothing of CPython's tests is edited. What changes is what the names `socketserver`, `HTTPServer` and the like mean in
the test modules; the standard library's own modules stay as they are, since our classes derive from theirs.
"""

from __future__ import annotations

import functools
import http.server
import importlib
import socketserver
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from put_in import Counts

THREADING = "threading"
PLAIN = "plain"
HTTP = "http"

_OURS = {
    THREADING: {
        "ThreadingMixIn": "AdaptivePoolMixIn",
        "ThreadingTCPServer": "AdaptivePoolTCPServer",
        "ThreadingUDPServer": "AdaptivePoolUDPServer",
        "ThreadingUnixStreamServer": "AdaptivePoolUnixStreamServer",
        "ThreadingUnixDatagramServer": "AdaptivePoolUnixDatagramServer",
    },
    PLAIN: {
        "TCPServer": "AdaptivePoolTCPServer",
        "UDPServer": "AdaptivePoolUDPServer",
        "UnixStreamServer": "AdaptivePoolUnixStreamServer",
        "UnixDatagramServer": "AdaptivePoolUnixDatagramServer",
    },
    HTTP: {"HTTPServer": "AdaptivePoolHTTPServer", "ThreadingHTTPServer": "AdaptivePoolHTTPServer"},
}
"""Which of our classes takes the place of which of the standard library's."""


class ServerSubstitution:
    """The servers under test, and the counting of them.

    Args:
        kind: Which classes are replaced: `THREADING`, `PLAIN` or `HTTP`.
        control: Whether the standard library's own classes are under test.
        counts: Where servers are counted: as executors, or as strays if they are not of the classes under test.
    """

    def __init__(self, kind: str, counts: Counts, *, control: bool) -> None:
        home: Any = http.server if kind == HTTP else socketserver
        ours: Any = home if control else importlib.import_module("ebbpool.socketserver")
        names = _OURS[kind].items()
        self._made = {name: getattr(ours, name if control else own) for name, own in names if hasattr(home, name)}
        self._mixed_in: type = socketserver.BaseServer if control else ours.AdaptivePoolMixIn
        self._counts = counts
        self._count_servers()

    @contextmanager
    def while_importing(self) -> Iterator[None]:
        """Let test modules that are imported in this block bind `socketserver` to one with the classes under test."""
        original = sys.modules["socketserver"]
        namespace = types.ModuleType("socketserver")
        vars(namespace).update(self._made)

        def standard(name: str) -> Any:
            return getattr(original, name)

        vars(namespace)["__getattr__"] = standard
        sys.modules["socketserver"] = namespace
        try:
            yield
        finally:
            sys.modules["socketserver"] = original

    def put_into(self, module: types.ModuleType) -> None:
        """Replace the names that the module has imported one by one.

        Raises:
            RuntimeError: The module has none of them, so the standard library would be tested.
        """
        names = vars(module)
        if "socketserver" in names:
            return
        replaced = {name: made for name, made in self._made.items() if name in names}
        if not replaced:
            raise RuntimeError(f"{module.__name__} has none of {', '.join(self._made)}")
        names.update(replaced)

    def _count_servers(self) -> None:
        base: Any = socketserver.BaseServer
        original = base.__init__
        counts, mixed_in = self._counts, self._mixed_in

        @functools.wraps(original)
        def counted(server: Any, *args: Any, **kwargs: Any) -> None:
            if isinstance(server, mixed_in):
                counts.executors += 1
            else:
                counts.strays += 1
            original(server, *args, **kwargs)

        base.__init__ = counted
