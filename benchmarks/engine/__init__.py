"""Measures the cells of a question, each in a fresh process, the peers in turn; and reads what came of it."""
