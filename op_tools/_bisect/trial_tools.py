"""The moved calls in a run of a bisection, and the tools that move them, compare operators, and save the culprits' calls."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .._base.core import Error
from .._tools.autocompare import OpAutoCompare
from .._tools.fallback import OpDtypeCast, OpFallback
from .._tools.tool import OpCapture, Tool
from . import Remedy
from .items import Call, Group, write_items

Purpose = Literal["nothing", "everything", "calls", "search", "refinement", "confirmation", "alone", "placebo"]


@dataclass(frozen=True)
class Trial:
    """The moved calls of a run, and the remedy."""

    groups: frozenset[Group] = frozenset()
    everything: bool = False
    """All that can be moved, listed or not."""
    remedy: Remedy = "fallback"
    purpose: Purpose = "search"
    lists: bool = False
    """List the calls of the program; a trial that moves nothing always does."""

    def key(self) -> str:
        """The same for the same trial of a session that goes on."""
        return json.dumps([self.remedy, self.everything, self.purpose, sorted(group.item for group in self.groups)])


def tool_of(trial: Trial, folder: Path) -> Tool:
    """The tool with which a trial runs.

    Args:
        trial: the moved calls.
        folder: for its files: which calls are moved, and which there are.

    Raises:
        op_tools.Error: the folder cannot be written to.
    """
    kind = OpDtypeCast if trial.remedy == "float32" else OpFallback
    own: dict[str, Any] = {"level": "aten"}
    if trial.remedy == "placebo":
        own["target"] = "same"
    if trial.everything:
        return kind(**own)
    if trial.lists or not trial.groups:
        own["list_calls"] = str(folder / "list")
    if trial.groups:
        own["only_calls"] = _written_items(folder / "calls", [group.item for group in trial.groups])
    return kind(**own)


def comparison(folder: Path) -> OpAutoCompare:
    """Compares the operators of the first step, and saves no call."""
    return OpAutoCompare(level="aten", steps=[0], max_saved=0, output_dir=str(folder))


def capture_of(calls: Sequence[Call], into: Path) -> OpCapture:
    """Saves these calls of the first step.

    Args:
        calls: which.
        into: a folder that is made here.

    Raises:
        op_tools.Error: it cannot be written.
    """
    only = _written_items(into / "calls", [call.of_call for call in calls])
    return OpCapture(level="aten", only_calls=only, steps=[0], max_calls=max(1, len(calls)), output_dir=str(into))


def unused(folder: Path) -> Path:
    """A folder in it for captured calls that is not there yet."""
    return next(path for path in (folder / f"calls{number}" for number in itertools.count(1)) if not path.exists())


def saved_call_folders(into: Path) -> list[str]:
    """The folders of the calls that were saved, in the order of the program; of several ranks those of the first."""
    root = into / "op_capture_result"
    folders = [path.parent for path in root.rglob("meta.json")]
    ranks = sorted({path.relative_to(root).parts[0] for path in folders})
    return [str(path) for path in sorted(folders, key=_call_number) if path.relative_to(root).parts[0] == ranks[0]]


def _call_number(folder: Path) -> int:
    number: int = json.loads((folder / "meta.json").read_text())["id"]
    return number


def _written_items(path: Path, items: Sequence[str]) -> str:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_items(path, items)
    except OSError as error:
        raise Error(f"{path}: {error.strerror}") from None
    return str(path)
