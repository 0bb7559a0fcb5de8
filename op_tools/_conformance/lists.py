"""Lists of cases: files of JSON lines, a file for each suite and minor version of torch; and filters of them."""

from __future__ import annotations

import functools
import gzip
import hashlib
import itertools
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from .._base.checks import checked_choice, checked_pattern
from .._base.core import Error
from .._base.data_file import read_data
from .._torch.operator_names import near_names
from . import DEFAULT_SOURCES, LISTED, SOURCES, mutations
from .captures import captured_cases
from .case import PHASES, Case
from .fault_cases import fault_cases

FOLDER = Path(__file__).parent / "op_tools_cases"


@dataclass(frozen=True)
class Filter:
    """Which cases are wanted."""

    fname: str = ""
    """A regular expression that matches the function's name, or the last part of it."""
    dtypes: frozenset[str] = frozenset()
    """Main dtypes that are left out, as DIOPI's --filter-dtype does."""
    models: frozenset[str] = frozenset()
    phase: str = ""
    """"forward", "backward" (those with gradients), "inplace" or "out"; "": all."""
    nhwc: bool = False
    """Tensors of four and five dimensions are channels-last."""
    four_bytes: bool = False
    """int64 tensors are int32."""
    max_bytes: int | None = None
    """Leaves out cases with more bytes of tensors."""


class FilterError(Error):
    """A filter has a word that names nothing: the user has to write another."""


def load_cases(
    suite: str = "",
    *,
    sources: tuple[str, ...] = DEFAULT_SOURCES,
    filter: Filter | None = None,
    captures: tuple[Path, ...] = (),
    mine: tuple[Path, ...] = (),
    lost: list[str] | None = None,
) -> Iterator[Case]:
    """The cases of the sources, in an order that is always the same.

    Args:
        suite: a file of cases (JSON lines, .gz or not) in place of the lists in the package; "": those lists.
        sources: which sources.
        filter: which cases of them; None: all.
        captures: folders of captures, for the source "captures".
        mine: files of the user, for the source "mine".
        lost: gets a sentence for each captured call that is damaged or missing.

    Raises:
        op_tools.Error: an unknown source or model, a wrong expression, or a damaged file, with file and line.
    """
    return filtered(source_cases(suite, sources, captures, mine, [] if lost is None else lost), filter or Filter())


def list_of(suite: str) -> Path:
    """The list of a suite in the package: that of this torch's minor version, else of the newest older, else of the oldest.

    A case of a function that an older torch lacks is not judged.

    Raises:
        op_tools.Error: there is none.
    """
    mine = _version(".".join(torch.__version__.split(".")[:2]))
    known = {_version(path.name): path for path in FOLDER.glob(f"{suite}/*.jsonl.gz")}
    older = [version for version in known if version <= mine]
    if not known:
        raise Error(f"the package has no list of the suite {suite}: {FOLDER / suite}")
    return known[max(older, default=min(known))]


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in re.findall(r"\d+", text)[:2])


def _lines_of(path: Path) -> list[str]:
    """The lines of a file, which may be packed (.gz).

    Raises:
        op_tools.Error: the file is not there, or damaged.
    """
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode().split("\n")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise Error(f"{path}: cannot be read: {error}") from None


def write_list(path: Path, cases: Iterable[Case]) -> tuple[int, str]:
    """Writes a list, packed where the name ends in .gz; the same cases give the same bytes.

    Returns:
        the number of cases, and the SHA-256 of the lines.

    Raises:
        op_tools.Error: the file cannot be written.
    """
    digest, count = hashlib.sha256(), 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as raw:
            target: Any = gzip.GzipFile("", "wb", 9, raw, mtime=0) if path.suffix == ".gz" else raw
            for case in cases:
                line = case.to_json().encode() + b"\n"
                digest.update(line)
                target.write(line)
                count += 1
            if target is not raw:
                target.close()
    except OSError as error:
        raise Error(f"{path}: cannot be written: {error.strerror}") from None
    return count, digest.hexdigest()


def digest_of(cases: Iterable[Case]) -> str:
    """The SHA-256 of the lines that these cases make."""
    digest = hashlib.sha256()
    for case in cases:
        digest.update(case.to_json().encode() + b"\n")
    return digest.hexdigest()


def our_list(suite: str) -> Iterator[Case]:
    """The cases of a suite in the package. They are as to_json() wrote them: to check and decode 56,000 takes longer than to run
    a few.

    Raises:
        op_tools.Error: there is no list of the suite.
    """
    return map(Case.from_line, _lines_of(list_of(suite))[:-1])


def read_list(path: Path) -> Iterator[Case]:
    """The cases of a file of lines.

    Raises:
        op_tools.Error: with file and line.
    """
    for number, line in enumerate(_lines_of(path), 1):
        if not line.strip():
            continue
        try:
            yield Case.from_json(line)
        except Error as error:
            raise Error(f"{path}:{number}: {error}") from None


@functools.cache
def _has_name(op: str, expression: re.Pattern[str]) -> bool:
    return any(expression.fullmatch(name) for name in {op, re.split(r"[.:]+", op)[-1]})


def read_mine(path: Path) -> Iterator[Case]:
    """The cases of a user's file: a list of objects in JSON or YAML, or a JSON object in each line. Ids are made.

    Raises:
        op_tools.Error: with file and place; YAML needs a library.
    """
    if path.suffix in (".yaml", ".yml"):
        listed = read_data(path)
        if not isinstance(listed, list):
            raise Error(f"{path}: is no list of cases")
    else:
        listed = _json_objects(path)
    for number, fields in enumerate(listed, 1):
        try:
            if not isinstance(fields, dict):
                raise Error("a case: is no object")
            case = Case.from_fields({**_with_pairs(fields), "id": "", "source": "mine"})
            if case.gradient and not any(tensor.requires_grad for tensor in case.tensors):
                raise Error('a case: "gradient": true, and no tensor has "requires_grad": true')
        except Error as error:
            raise Error(f"{path}: case {number}: {error}") from None
        yield case


def _json_objects(path: Path) -> list[Any]:
    """Of a list, or of lines; the file may be compressed."""
    lines = _lines_of(path)
    try:
        if (text := "\n".join(lines)).lstrip().startswith("["):
            listed: list[Any] = json.loads(text)
            return listed
        return [json.loads(one) for one in lines if one.strip()]
    except (ValueError, RecursionError) as error:
        raise Error(f"{path}: is no JSON: {error}") from None


def _with_pairs(fields: dict[str, Any]) -> dict[str, Any]:
    """People write kwargs as an object."""
    kwargs = fields.get("kwargs")
    if isinstance(kwargs, dict) and set(kwargs) != {"dict"}:
        fields = {**fields, "kwargs": {"dict": [[key, value] for key, value in kwargs.items()]}}
    return fields


def source_cases(
    suite: str,
    sources: tuple[str, ...],
    captures: tuple[Path, ...],
    mine: tuple[Path, ...],
    lost: list[str],
) -> Iterator[Case]:
    """The cases of :func:`load_cases`, without a filter."""
    for source in sources:
        checked_choice("--source", source, SOURCES)
    if suite:
        return (case for case in read_list(Path(suite)) if case.source in sources)
    lists: list[Iterable[Case]] = [our_list(one) for one in LISTED if one in sources]
    if "faults" in sources:
        lists.append(fault_cases())
    if "captures" in sources:
        lists += [captured_cases(path, lost) for path in captures]
    if "mine" in sources:
        lists += [read_mine(path) for path in mine]
    return itertools.chain.from_iterable(lists)


def filtered(cases: Iterable[Case], wanted: Filter) -> Iterator[Case]:
    """The cases that a filter wants, changed as it says; each once.

    Raises:
        FilterError: the filter has a wrong expression, dtype, phase or model.
    """
    expression = _checked(wanted)
    seen: set[str] = set()
    models: set[str] = set()
    for case in cases:
        if wanted.models:
            models.update(case.models)
        if not _is_wanted(case, wanted, expression):
            continue
        changed = _changed(case, wanted)
        if changed.id not in seen and (wanted.max_bytes is None or changed.bytes <= wanted.max_bytes):
            seen.add(changed.id)
            yield changed
    if missing := sorted(wanted.models - models):
        raise FilterError(
            f"--model {missing[0]}: no case of this model; {_near(missing[0], sorted(models))}--list-models names them"
        )


def _near(name: str, known: list[str]) -> str:
    near = near_names(name, known)
    return f"did you mean {' or '.join(near)}? " if near else ""


def _checked(wanted: Filter) -> re.Pattern[str] | None:
    for name in wanted.dtypes:
        if not isinstance(getattr(torch, name, None), torch.dtype):
            raise FilterError(f"--filter-dtype {name}: is no dtype of torch")
    try:
        checked_choice("--phase", wanted.phase, ("", *PHASES))
        return checked_pattern("--fname", wanted.fname) if wanted.fname else None
    except Error as error:
        raise FilterError(str(error)) from None


def _is_wanted(case: Case, wanted: Filter, expression: re.Pattern[str] | None) -> bool:
    if expression is not None and not _has_name(case.op, expression):
        return False
    if wanted.models and not wanted.models & set(case.models):
        return False
    if wanted.dtypes and case.dtype in wanted.dtypes:
        return False
    return not wanted.phase or wanted.phase in phases_of(case)


def phases_of(case: Case) -> tuple[str, ...]:
    """The phases that a case belongs to."""
    if case.variant in ("inplace", "out"):
        return (case.variant,)
    return ("forward", "backward") if case.gradient else ("forward",)


def _changed(case: Case, wanted: Filter) -> Case:
    for name in [one for one, on in (("nhwc", wanted.nhwc), ("four-bytes", wanted.four_bytes)) if on]:
        if case.data is not None:
            raise Error(
                f"--{name}: {case.id} is a captured call, whose tensors stay as they were: leave --captures out"
            )
        case = mutations.mutated(case, name) or case
    return case if not wanted.models else replace(case, models=_only(case, wanted))


def _only(case: Case, wanted: Filter) -> dict[str, int]:
    return {name: calls for name, calls in case.models.items() if name in wanted.models}
