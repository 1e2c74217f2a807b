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

import socket

from ebbpool._http.server import AdaptivePoolHTTPServer
from ebbpool._servers.mixin import AdaptivePoolMixIn, AdaptivePoolTCPServer, AdaptivePoolUDPServer

__all__ = ["AdaptivePoolHTTPServer", "AdaptivePoolMixIn", "AdaptivePoolTCPServer", "AdaptivePoolUDPServer"]

if hasattr(socket, "AF_UNIX"):
    from ebbpool._servers.mixin import AdaptivePoolUnixDatagramServer, AdaptivePoolUnixStreamServer

    __all__ += ["AdaptivePoolUnixDatagramServer", "AdaptivePoolUnixStreamServer"]
