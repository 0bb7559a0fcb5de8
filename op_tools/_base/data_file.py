"""Small files that users write, in the form that their name says: TOML, YAML or JSON."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from .core import Error
from .error_text import one_line


def read_toml(path: str | Path) -> dict[str, Any]:
    """The content of a TOML file.

    Raises:
        op_tools.Error: the file cannot be read, is no TOML, or this Python cannot read TOML.
    """
    if sys.version_info < (3, 11):
        raise Error(f"{path}: Python 3.11 is the first that reads TOML")
    tomllib = importlib.import_module("tomllib")  # newer than the oldest Python that this runs with
    try:
        content: dict[str, Any] = tomllib.loads(_text(path))
        return content
    except ValueError as error:
        raise Error(f"{path}: is no TOML: {error}") from None


def read_json(path: str | os.PathLike[str], hint: str = "") -> Any:
    """The content of a JSON file.

    Args:
        path: the file.
        hint: the expected content of the file, or its maker; a part of each error.

    Raises:
        op_tools.Error: the file cannot be read, or is no JSON.
    """
    more = f"; {hint}" if hint else ""
    try:
        return json.loads(_text(Path(path)))
    except Error as error:
        raise Error(f"{error}{more}") from None
    except (ValueError, RecursionError) as error:
        raise Error(f"{path}: is no JSON: {error}{more}") from None


def read_data(path: str | os.PathLike[str]) -> Any:
    """The content of a .toml, .yaml or .yml file, or of a file of JSON.

    Raises:
        op_tools.Error: the file cannot be read, or is not of that form; YAML needs a library.
    """
    if Path(path).suffix == ".toml":
        return read_toml(Path(path))
    if Path(path).suffix not in (".yaml", ".yml"):
        return read_json(path)
    text = _text(Path(path))
    try:
        return importlib.import_module("yaml").safe_load(text)
    except ImportError:
        raise Error(f"{path}: YAML needs a library: pip install pyyaml; or write it as JSON") from None
    except Exception as error:  # whatever the form of the file makes of it
        raise Error(f"{path}: cannot be read: {one_line(error)}") from None


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise Error(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise Error(f"{path}: cannot be read: {error}") from None
