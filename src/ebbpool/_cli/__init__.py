"""The command ``python -m ebbpool``."""
