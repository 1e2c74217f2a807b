"""What an executor can do beyond one call: maps, streams, delayed and repeated calls."""
