"""The version, for those who must not import the package for it."""

from __future__ import annotations

__version__ = "0.1.0"
