"""Instructions a task on fixed scripts, held against figures that are kept here: `python -m benchmarks.guard`."""
