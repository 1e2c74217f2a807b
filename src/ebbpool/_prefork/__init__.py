"""The parts of `ebbpool.prefork`; they know nothing of pools."""
