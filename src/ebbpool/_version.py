"""The version, for those who must not import the package for it. In a wheel this file holds nothing else."""

from __future__ import annotations

import importlib.metadata

try:
    __version__ = importlib.metadata.version("ebbpool")
except importlib.metadata.PackageNotFoundError:
    __version__ = "0+unknown"
