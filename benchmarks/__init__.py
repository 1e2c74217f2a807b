"""How fast ebbpool is beside its rivals: one file per question, `python -m benchmarks` runs them.

It is run from the root of the repository and is no part of the installed package.
"""
