"""What `ebbpool.fastthreadpool` is made of."""
