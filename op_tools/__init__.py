"""op_tools: look at every operator that a PyTorch program runs, capture it, and replay it elsewhere.

`import op_tools` loads torch and the modules that OpCapture needs; everything else is loaded at its first use. The public names
stand in __init__.pyi. The command line loads torch only when its command needs it.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

from ._base.own_command import is_command_line

_TOOLS = "._tools.tool"  # takes the package's places in torch and in the core

if not is_command_line():
    import_module(_TOOLS, __name__)


def _public() -> dict[str, str]:
    """The public names, each with the module that has it, as __init__.pyi says."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


_MODULE_OF = _public()


def __getattr__(name: str) -> Any:
    if (module := _MODULE_OF.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module(_TOOLS, __name__)
    value = globals()[name] = getattr(import_module(f".{module}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = sorted(_MODULE_OF)
