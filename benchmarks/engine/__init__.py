"""A question's cells, columns and targets; each cell measured in a fresh process, the peers in turn."""
