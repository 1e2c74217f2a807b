"""What imports asyncio at its top; loaded on first use only."""
