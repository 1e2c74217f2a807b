"""The parts of `ebbpool.anyio`: how it runs calls on asyncio, how on trio, and what the two share."""
