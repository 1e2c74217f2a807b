"""The parts of `ebbpool.fastthreadpool`."""
