"""One pool around its engine: threads, growth, time, exit and fork."""
