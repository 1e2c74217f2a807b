"""The parts of `ebbpool.dask.ClusterExecutor`: what runs on the workers and the scheduler, and what waits here."""
