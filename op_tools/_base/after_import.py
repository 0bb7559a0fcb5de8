"""An action right behind the first import of a module, before its importer goes on.

``op_tools/startup/sitecustomize.py`` loads this file by its path, before torch and op_tools are imported: it imports nothing of
the package.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


class AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the module once, loads it with its own loader, and acts.

    Args:
        name: of a module that is not imported yet.
        action: takes the module.
        run: calls a function with its argument; the module's code is run by it.
    """

    def __init__(
        self,
        name: str,
        action: Callable[[ModuleType], object],
        run: Callable[[Callable[[ModuleType], Any], ModuleType], object] = lambda function, module: function(module),
    ) -> None:
        self._name, self._action, self._run = name, action, run
        self._loader: Any = None
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, *_: Any) -> Any:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: Any) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None  # it is being imported
        module.__spec__.loader = module.__loader__ = self._loader
        self._run(self._loader.exec_module, module)
        self._action(module)
