"""The parts of the command ``python -m ebbpool``."""
