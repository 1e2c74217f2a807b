"""Attributes of classes and modules that are replaced for a while."""

from __future__ import annotations

from typing import Any, Final

_INHERITED: Final = object()


class Replacements:
    """The attributes that have been replaced."""

    def __init__(self) -> None:
        # The owner, the name, the old value and the new one of each.
        self.replaced: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Replace an attribute by `new`, until `restore` puts the old value back."""
        # What a module imports lazily is what it stands for only after this.
        getattr(owner, name, None)
        self.replaced.append((owner, name, vars(owner).get(name, _INHERITED), new))
        setattr(owner, name, new)

    def restore(self) -> None:
        """Put all attributes back; raise RuntimeError, and change nothing, if other code has replaced one since."""
        for owner, name, _, new in self.replaced:
            if vars(owner).get(name) is not new:
                raise RuntimeError(f"{owner.__name__}.{name} has been replaced since; undo that first")
        while self.replaced:
            owner, name, old, _ = self.replaced.pop()
            if old is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, old)
