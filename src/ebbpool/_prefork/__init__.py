"""The parts of `ebbpool.prefork`: processes, their sockets and their signals."""
