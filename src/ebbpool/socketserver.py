"""`socketserver`'s servers, with an adaptive pool to run their handlers.

Put the mix-in in front of any server class, or take a ready-made one::

    from socketserver import StreamRequestHandler

    from ebbpool.socketserver import AdaptivePoolTCPServer


    class Echo(StreamRequestHandler):
        def handle(self):
            for line in self.rfile:
                self.wfile.write(line)


    class Server(AdaptivePoolTCPServer):
        max_workers = 200
        max_queue = 1000


    with Server(("127.0.0.1", 7000), Echo) as server:
        server.serve_forever()

The settings are class attributes; see `AdaptivePoolMixIn`.
"""

from __future__ import annotations

import os
import socket
import socketserver

from ebbpool._http.server import AdaptivePoolHTTPServer
from ebbpool._servers.mixin import AdaptivePoolMixIn

__all__ = ["AdaptivePoolHTTPServer", "AdaptivePoolMixIn", "AdaptivePoolTCPServer", "AdaptivePoolUDPServer"]


class AdaptivePoolTCPServer(AdaptivePoolMixIn, socketserver.TCPServer):
    """A TCP server on an adaptive pool."""

    request_queue_size = 1024
    # Only on POSIX: on Windows the option would let another process take the port.
    allow_reuse_address: bool = os.name == "posix"


class AdaptivePoolUDPServer(AdaptivePoolMixIn, socketserver.UDPServer):
    """A UDP server on an adaptive pool."""


if hasattr(socket, "AF_UNIX"):
    __all__ += ["AdaptivePoolUnixDatagramServer", "AdaptivePoolUnixStreamServer"]

    class AdaptivePoolUnixStreamServer(AdaptivePoolMixIn, socketserver.UnixStreamServer):
        """A stream server at a path, on an adaptive pool."""

        request_queue_size = 1024

    class AdaptivePoolUnixDatagramServer(AdaptivePoolMixIn, socketserver.UnixDatagramServer):
        """A datagram server at a path, on an adaptive pool."""
