"""What `ebbpool.prefork` is made of; it knows no pool."""
