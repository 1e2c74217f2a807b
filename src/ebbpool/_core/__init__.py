"""What is compiled, its plain source, and the pick between the two."""
