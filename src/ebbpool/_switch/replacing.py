"""What is changed in other modules: attributes that are replaced for a while, actions as soon as a module is imported.

`importlib.abc`, whose classes say no more than which methods there are, imports a lot.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

_INHERITED: Final = object()


class Replacements:
    """Attributes of classes and modules that have been replaced.

    Attributes:
        replaced: The owner, the name, the old value and the new one of each.
    """

    def __init__(self) -> None:
        self.replaced: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Replace an attribute by `new`, until `restore` puts the old value back."""
        self.replaced.append((owner, name, vars(owner).get(name, _INHERITED), new))
        setattr(owner, name, new)

    def restore(self) -> None:
        """Put all replaced attributes back.

        Raises:
            RuntimeError: Other code has replaced the same attributes since; nothing has changed.
        """
        for owner, name, _, new in self.replaced:
            if vars(owner).get(name) is not new:
                raise RuntimeError(f"{owner.__name__}.{name} has been replaced since; undo that first")
        while self.replaced:
            owner, name, old, _ = self.replaced.pop()
            if old is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, old)


Action = Callable[[ModuleType], None]


class Watcher:
    """A finder for `sys.meta_path` that has the others find a module, and then has its action done.

    Attributes:
        wanted: The actions for modules that have not been imported, by name.
        here: The module that the calling thread asks the other finders for, by the way that leads here again.
    """

    def __init__(self) -> None:
        self.wanted: dict[str, Action] = {}
        self.here = threading.local()

    def watch(self, name: str, action: Action) -> bool:
        """Do `action` with the module now if it is imported, else as soon as it is; return whether it was done."""
        module = sys.modules.get(name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            action(module)
            return True
        self.wanted[name] = action
        return False

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find a module that is watched for, by asking the other finders."""
        if fullname not in self.wanted or getattr(self.here, "name", None) == fullname:
            return None
        self.here.name = fullname
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.here.name = None
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)  # type: ignore[assignment]  # it has what a loader has
        return spec


class _Loader:
    """A loader that has a module's action done once it is loaded; many ask for a loader and load nothing."""

    def __init__(self, loader: Any, watcher: Watcher) -> None:
        self.loader = loader
        self.watcher = watcher

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        found: ModuleType | None = self.loader.create_module(spec)
        return found

    def exec_module(self, module: ModuleType) -> None:
        # From here on nobody sees that we have been there.
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        action = self.watcher.wanted.pop(module.__name__, None)
        if action is not None:
            action(module)
