"""The parts of the socketserver servers."""
