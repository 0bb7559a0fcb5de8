"""Reads a dump of msprobe: STEP/RANK/dump.json, stack.json, construct.json and dump_tensor_data/*.pt."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from .._base.core import Error
from ._files import dtype_named, inside, read_json_object
from ._model import Dump, ForeignCall, ForeignTensor, Missing, tensors_in
from ._msprobe_writer import BY_ARGUMENT, GRADIENTS
from ._names import our_name
from ._parse import MODULE, function_of_module, number, shape_of, stack_lines

_API = re.compile(r"(?P<kind>[A-Za-z]+)\.(?P<function>.+)\.(?P<number>\d+)\.(?P<phase>forward|backward)")
_MODULE = re.compile(
    r"(?:Module|Cell)\.(?P<path>.+)\.(?P<kind>\w+)\.(?P<phase>forward|backward|parameters_grad)\.(?P<number>\d+)"
)
_TENSORS = ("torch.Tensor", "mindspore.Tensor", "torch.distributed.tensor.DTensor", "DTensor")
_MAX_DEPTH = 400  # as msprobe's own


def dump_files(path: Path) -> list[Path]:
    """The files by which the format is known, at or below a path."""
    if path.is_file():
        return [path] if path.name == "dump.json" else []
    files = [one for pattern in ("dump.json", "*/dump.json", "*/*/dump.json") for one in path.glob(pattern)]
    return sorted(files, key=lambda one: (_rank_of_file(one), _step(one), str(one)))


def _step(file: Path) -> int:
    matches = [re.fullmatch(r"step(\d+)", part) for part in file.parent.parts]
    return int(next((one[1] for one in reversed(matches) if one), 0))


def _rank_of_file(file: Path) -> int:
    match = re.fullmatch(r"rank(\d+)", file.parent.name)
    return int(match[1]) if match else 0


def read(path: Path) -> Dump:
    """Reads the dump at a path: the dump_path, a step, or a rank.

    Raises:
        op_tools.Error: a file cannot be read; with its line.
    """
    calls: list[ForeignCall] = []
    problems: list[str] = []
    header: dict[str, str] = {}
    last: dict[int, int] = {}
    for file in dump_files(path):
        reader = _File(file, problems)
        rank = _rank_of_file(file)
        calls_of_rank = reader.calls(last.get(rank, 0))
        last[rank] = last.get(rank, 0) + len(calls_of_rank)
        calls += calls_of_rank
        header.update(reader.header)
    return Dump(path, "msprobe", tuple(calls), tuple(problems), header)


class _File:
    """The dump of a rank in a step."""

    def __init__(self, file: Path, problems: list[str]) -> None:
        self._file, self._problems = file, problems
        self._rank, self._step = _rank_of_file(file), _step(file)
        self._folder = file.parent / "dump_tensor_data"
        dump = read_json_object(file)
        data = dump.get("data")
        if not isinstance(data, dict):
            raise Error(f"{file}: has no object 'data'; this is no dump of msprobe")
        self._data: dict[str, Any] = data
        self.header = {key: str(dump[key]) for key in ("task", "level", "framework") if dump.get(key)}
        self._by_node = dump.get(GRADIENTS) != BY_ARGUMENT
        self._stacks = self._read_stacks()
        construct = file.parent / "construct.json"
        self._parents = read_json_object(construct) if construct.is_file() else {}

    def _read_stacks(self) -> dict[str, tuple[str, ...]]:
        file = self._file.parent / "stack.json"
        stacks = read_json_object(file) if file.is_file() else {}
        if "0" not in stacks:  # older: by name
            return {name: stack_lines(lines) for name, lines in stacks.items()}
        stacks_by_name = {}
        for pair in stacks.values():
            if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], list):
                raise Error(f"{file}: expected [[names], [lines]], not {pair!r:.80}")
            stacks_by_name.update({name: stack_lines(pair[1]) for name in pair[0] if isinstance(name, str)})
        return stacks_by_name

    def calls(self, first: int) -> list[ForeignCall]:
        calls: list[ForeignCall] = []
        for name, fields in self._data.items():
            if not isinstance(fields, dict):
                raise Error(f"{self._file}: data of {name!r:.120} is no object")
            call = self._api(name, fields, first + len(calls)) or self._module(name, fields, first + len(calls))
            if call is None:
                self._problems.append(f"{self._file}: {name!r:.120} is no name of a call")
            else:
                calls.append(call)
        return calls

    # --- Calls ---

    def _api(self, name: str, fields: dict[str, Any], count: int) -> ForeignCall | None:
        match = _API.fullmatch(name)
        if match is None or match["kind"] in ("Module", "Cell"):
            return None
        ours = our_name(match["kind"], match["function"])
        level = "aten" if match["kind"] == "Aten" else "torch"
        why = "" if ours else f"torch has no operator {match['kind']}.{match['function']}"
        if match["kind"] == "Distributed":
            why = "a collective: it needs its process group"
        return self._call(
            name, fields, count, match["phase"], ours, name.removesuffix(f".{match['phase']}"), level, why
        )

    def _module(self, name: str, fields: dict[str, Any], count: int) -> ForeignCall | None:
        match = _MODULE.fullmatch(name)
        if match is None:
            return None
        base = f"Module.{match['path']}.{match['kind']}.{match['number']}"
        phase = "forward" if match["phase"] == "forward" else "backward"
        if match["phase"] == "parameters_grad":
            grads = {key: value for key, value in fields.items() if isinstance(value, list)}
            result = self._tree(grads, "parameter_grad", name)
            why = "gradients of parameters, which may be sums over several calls"
            return self._made(base, count, phase, "", "module", match["path"], result, why)
        parameters = self._tree(fields.get("parameters") or {}, "parameter", name)
        known = {key: one for key, one in parameters.items() if isinstance(one, ForeignTensor)}
        function, further = function_of_module(match["kind"], known) if phase == "forward" else ("", [])
        level, why = ("torch", "") if function else ("module", MODULE)
        call = self._call(name, fields, count, phase, function, base, level, why, further)
        return replace(call, module=match["path"])

    def _call(
        self,
        name: str,
        fields: dict[str, Any],
        count: int,
        phase: str,
        ours: str,
        base: str,
        level: str,
        why: str,
        further: list[Any] | None = None,
    ) -> ForeignCall:
        forward = phase == "forward"
        inputs = fields.get("input_args", fields.get("input"))
        args = None if inputs is None else (*self._tree(inputs, "input" if forward else "grad_output", name),)
        kwargs = self._tree(fields.get("input_kwargs") or {}, "input", name) if forward else None
        outputs = fields.get("output")
        result = None if outputs is None else self._tree(outputs, "output" if forward else "grad_input", name)
        if isinstance(result, list):
            # A single result is a list of length 1; several are those of a tuple. Gradients stay a sequence.
            result = result[0] if forward and len(result) == 1 else tuple(result)
        if args is None and forward and not why:
            why = "its arguments are not in the dump (data_mode)"
        call = self._made(base, count, phase, ours, level, self._parent(name), result, why)
        if args is not None and further:
            args = (*args, *further)
        return replace(
            call,
            args=args,
            kwargs=kwargs,
            stack=self._stacks.get(name, ()),
            tensors=tensors_in(args, kwargs, result),
        )

    def _made(
        self, base: str, count: int, phase: str, ours: str, level: str, module: str, result: Any, why: str
    ) -> ForeignCall:
        return ForeignCall(
            name=ours,
            foreign_name=base,
            number=count,
            phase=phase,
            step=self._step,
            rank=self._rank,
            level=level,
            module=module,
            result=result,
            tensors=tensors_in(result),
            why_not=why,
            by_node=level != "module" and self._by_node,
        )

    def _parent(self, name: str) -> str:
        """The path of the module in which an operator was called."""
        parent = self._parents.get(name)
        if isinstance(parent, list) and parent:  # [parent, micro step]
            parent = parent[0]
        match = _MODULE.fullmatch(parent) if isinstance(parent, str) else None
        return match["path"] if match else ""

    # --- Values ---

    def _tree(self, value: Any, role: str, name: str, place: str = "", depth: int = 0) -> Any:
        if depth > _MAX_DEPTH:
            raise Error(f"{self._file}: {name}: values are nested deeper than {_MAX_DEPTH}")
        if isinstance(value, dict) and isinstance(value.get("type"), str):
            return self._value(value, role, name, place)
        below = f"{place}." if place else ""
        if isinstance(value, dict):
            return {key: self._tree(one, role, name, f"{below}{key}", depth + 1) for key, one in value.items()}
        if isinstance(value, list):
            return [self._tree(one, role, name, f"{below}{i}", depth + 1) for i, one in enumerate(value)]
        return value

    def _value(self, value: dict[str, Any], role: str, name: str, place: str) -> Any:
        kind = value["type"]
        if kind in _TENSORS:
            return self._tensor(value, role, name, place)
        make = _VALUES.get(kind)
        try:
            return make(value) if make else Missing(f"a value of type {kind}")
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise Error(f"{self._file}: {name}: {place or role}: no {kind}: {value!r:.120} ({error})") from None

    def _tensor(self, value: dict[str, Any], role: str, name: str, place: str) -> ForeignTensor:
        where = f"{self._file}: {name}: {place or role}"
        file = value.get("data_name")
        data = inside(self._folder, file, where) if isinstance(file, str) else None
        if data is not None and not data.is_file():
            self._problems.append(f"{where}: {data} is missing")
            data = None
        flag = value.get("requires_grad")
        return ForeignTensor(
            role=role,
            place=place or "0",
            dtype=str(value.get("dtype") or ""),
            shape=shape_of(value["shape"], where) if value.get("shape") is not None else None,
            min=number(value.get("Min")),
            max=number(value.get("Max")),
            mean=number(value.get("Mean")),
            norm=number(value.get("Norm")),
            hash=str(value.get("md5") or ""),
            requires_grad=flag if isinstance(flag, bool) else None,
            values=str(data) if data else "",
        )


def _reader_of(kind: type) -> Callable[[dict[str, Any]], Any]:
    def read_plain(value: dict[str, Any]) -> Any:
        plain = value["value"]
        if not isinstance(plain, (kind, int) if kind is float else kind):
            raise TypeError(f"{type(plain).__name__}")
        return kind(plain)

    return read_plain


def _device_of_value(value: dict[str, Any]) -> torch.device:
    return torch.device(str(value["value"]).removesuffix(":None"))


def _dtype_of_value(value: dict[str, Any]) -> torch.dtype:
    dtype = dtype_named(str(value["value"]))
    if dtype is None:
        raise ValueError("torch has no such dtype")
    return dtype


def _memory_format(value: dict[str, Any]) -> Any:
    memory_format = getattr(torch, str(value["format"]), None)
    if not isinstance(memory_format, torch.memory_format):
        raise ValueError("torch has no such format")
    return memory_format


# How values besides tensors are read, by their type.
_VALUES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "bool": _reader_of(bool),
    "int": _reader_of(int),
    "float": _reader_of(float),
    "str": _reader_of(str),
    "slice": lambda value: slice(*value["value"]),
    "ellipsis": lambda _: Ellipsis,
    "torch.Size": lambda value: torch.Size(value["value"]),
    "torch.device": _device_of_value,
    "torch.dtype": _dtype_of_value,
    "torch.memory_format": _memory_format,
}
