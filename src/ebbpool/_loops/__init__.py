"""The parts for event loops, which import asyncio; loaded on first use only."""
