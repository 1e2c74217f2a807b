"""The version: asked of the installed package here, a plain string in a wheel; it imports nothing of ebbpool."""

from __future__ import annotations

import importlib.metadata

try:
    __version__ = importlib.metadata.version("ebbpool")
except importlib.metadata.PackageNotFoundError:
    __version__ = "0+unknown"
