"""The rivals: how each is imported, opened and called, in one table."""

from __future__ import annotations

import importlib
import shutil
from typing import Any


class Unavailable(Exception):
    """The peer cannot run here; the text says why."""


def package(name: str) -> Any:
    """Return a module that may not be installed: `Unavailable` says so."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Unavailable(f"not installed: {error}") from error


def program(name: str, hint: str = "") -> str:
    """Return the path of a program that may not be installed; `hint` says how it is called elsewhere."""
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"{name} is not installed{hint}")
    return found
