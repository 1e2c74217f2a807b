"""Tables and pages of a run, and what moved between two."""
