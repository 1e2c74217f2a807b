"""The programs that are loaded: each a process of its own, and what looks after it."""
