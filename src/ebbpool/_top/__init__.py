"""``python -m ebbpool top``: finding a process, asking it, and showing what it answers."""
