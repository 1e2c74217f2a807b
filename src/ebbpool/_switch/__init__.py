"""What one switch changes in a process: loops, trio's threads, executors, streams; and the undoing of it."""
