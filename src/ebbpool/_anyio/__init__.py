"""How `ebbpool.anyio` runs calls, for each backend."""
