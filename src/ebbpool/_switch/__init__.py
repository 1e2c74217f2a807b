"""The parts of `ebbpool.install`: what stands in for executors, trio's threads and Starlette's streams; the undoing."""
