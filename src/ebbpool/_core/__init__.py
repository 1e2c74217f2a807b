"""The parts that are compiled, their plain source, and the choice between the two."""
