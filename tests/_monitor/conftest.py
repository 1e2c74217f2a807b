"""Short paths for sockets."""

from support.monitor import tmp_path  # noqa: F401  (a fixture)
