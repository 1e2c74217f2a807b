"""The metrics of pools, as monitoring systems want them: one table, and what reads it."""
