"""The parts of the HTTP server."""
