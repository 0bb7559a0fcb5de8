"""Reads a dump of troubleshooter's api_dump (also under the prefixes mindspore and mindtorch).

RANK/torch_api_dump_info.csv (older: .pkl) has a JSON list per line: [row, 1, [], dtype, shape, [max, min, mean]], and since
May 2024 md5 and norm. A row is "Functional_pad_0_forward_input.0"; its values are in torch_api_dump/ROW.npy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .._base.captured_calls import load
from .._base.core import Error
from ._files import inside, load_npy, parse_json, read_json_object, read_text
from ._model import Dump, ForeignCall, ForeignTensor, tensors_in
from ._names import our_name
from ._parse import MODULE, by_place, function_of_module, number, shape_of, stack_lines

INFO = ("torch_api_dump_info", "mindspore_api_dump_info", "mindtorch_api_dump_info")
_ROW = re.compile(
    r"(?P<kind>[A-Za-z]+)_(?P<function>\w+)_(?P<number>\d+)_(?P<phase>forward|backward)_"
    r"(?P<side>input|output)(?P<place>(?:\.\d{1,9})*)"
)
_LAYER = re.compile(r"LAYER_(?P<module>\w*)_(?:forward|backward)_(?:input|output)[.\d]*")
_KINDS = {"Tensor": "torch.Tensor.", "Torch": "torch.", "NN": "torch.nn.", "Functional": "torch.nn.functional."}
_FILTERED = "not in the dump, which leaves out values that are no tensors of floats (filter_data)"
_SCALARS = {"<class 'int'>": int, "<class 'float'>": float, "<class 'bool'>": bool}


@dataclass
class _Row:
    name: str
    match: re.Match[str]
    value: Any  # a ForeignTensor, or a Python number


@dataclass
class _Group:
    """The rows of a call in a phase."""

    base: str
    phase: str
    kind: str
    function: str
    step: int
    module: str
    first: bool  # the first call of its module
    rows: dict[tuple[str, str], _Row]


def info_files(path: Path) -> list[Path]:
    """The files by which the format is known, at or below a path."""
    names = {f"{name}{suffix}" for name in INFO for suffix in (".csv", ".pkl")}
    if path.is_file():
        return [path] if path.name in names else []
    files = [one for pattern in ("*", "*/*") for one in path.glob(pattern) if one.name in names]
    return sorted(one for one in files if one.suffix == ".csv" or one.with_suffix(".csv") not in files)


def read(path: Path) -> Dump:
    """Reads the dump at a path: the folder that api_dump_init was given, or a rank in it.

    Raises:
        op_tools.Error: a file cannot be read; with its line.
    """
    calls: list[ForeignCall] = []
    problems: list[str] = []
    for info in info_files(path):
        rank = re.fullmatch(r"rank(\d+)", info.parent.name)
        calls += _Rank(info, int(rank[1]) if rank else 0, problems).calls()
    framework = {"torch": "pytorch"}.get(prefix := info_files(path)[0].name.partition("_")[0], prefix)
    return Dump(path, "troubleshooter", tuple(calls), tuple(problems), {"framework": framework})


class _Rank:
    """A rank's folder."""

    def __init__(self, info: Path, rank: int, problems: list[str]) -> None:
        self._info, self._rank, self._problems = info, rank, problems
        prefix = info.name.removesuffix(info.suffix).removesuffix("_info")
        self._arrays = info.parent / prefix
        stack = info.parent / f"{prefix}_stack.json"
        self._stacks = read_json_object(stack) if stack.is_file() else {}
        weights = info.parent / ("ad_net.pth" if prefix.startswith("mindtorch") else "pt_net.pth")
        self._weights = weights if weights.is_file() else None
        self._state = self._state_dict() if self._weights else {}

    def _state_dict(self) -> dict[str, Any]:
        state = load(str(self._weights))
        if not isinstance(state, dict):
            raise Error(f"{self._weights}: holds a {type(state).__name__}, expected a state_dict")
        return {key: value for key, value in state.items() if isinstance(key, str)}

    def calls(self) -> list[ForeignCall]:
        return [self._call(number, group) for number, group in enumerate(self._groups())]

    # --- Rows ---

    def _lines(self) -> Iterator[tuple[int, list[Any]]]:
        lines = read_text(self._info).split("\n")
        for count, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                fields = parse_json(line, str(self._info), count)
            except Error as error:
                if count < len(lines):
                    raise
                # Without its end of line: the program ended while it wrote the line.
                self._problems.append(str(error))
                return
            if not isinstance(fields, list) or len(fields) not in (6, 8):
                raise Error(f"{self._info}: line {count}: expected a list of 6 or 8 fields, not {line[:60]!r}")
            yield count, fields

    def _value(self, where: str, fields: list[Any]) -> Any:
        name, _, _, dtype, shape, statistics = fields[:6]
        if not isinstance(dtype, str) or not isinstance(statistics, list) or len(statistics) != 3:
            raise Error(f"{where}: expected a dtype and [max, min, mean], not {fields[3:6]!r:.80}")
        array = inside(self._arrays, f"{name}.npy", where)
        if dtype in _SCALARS:
            known = statistics[0] == statistics[0]  # NaN where no statistics were asked for
            if not known and not array.is_file():
                return None
            plain = statistics[0] if known else load_npy(array).item()
            return _SCALARS[dtype](plain) if isinstance(plain, (bool, int, float)) else None
        largest, smallest, mean = (number(one) for one in statistics)
        digest, norm = fields[6:] if len(fields) == 8 else ("", None)
        return ForeignTensor(
            role="",
            place="",
            dtype=dtype,
            shape=shape_of(shape, where),
            min=smallest,
            max=largest,
            mean=mean,
            norm=number(norm),
            label=name,
            hash=digest if isinstance(digest, str) else "",
            values=str(array) if array.is_file() else "",
        )

    def _groups(self) -> list[_Group]:
        groups: dict[tuple[str, str, int], _Group] = {}
        module, step, was_backward = "", 0, False
        seen: set[str] = set()
        for count, fields in self._lines():
            where = f"{self._info}: line {count}"
            name = fields[0]
            if not isinstance(name, str):
                raise Error(f"{where}: the name is {name!r:.80}, expected a string")
            if layer := _LAYER.fullmatch(name):
                module = layer["module"]
                continue
            match = _ROW.fullmatch(name)
            if match is None:
                self._problems.append(f"{where}: {name!r:.120} is no row's name")
                continue
            if match["phase"] == "forward" and was_backward:
                step += 1
            was_backward = match["phase"] == "backward"
            base = f"{match['kind']}_{match['function']}_{match['number']}"
            row = _Row(name, match, self._value(where, fields))
            passes = 0
            while (key := (base, match["phase"], passes)) in groups:
                if (match["side"], match["place"]) not in groups[key].rows:
                    break
                passes += 1  # a second backward pass over the call
            if key not in groups:
                own = module if match["kind"] == "NN" else ""
                groups[key] = _Group(
                    base, match["phase"], match["kind"], match["function"], step, own, own not in seen, {}
                )
                seen.add(own)
                module = ""  # the row of a module belongs to the next call only
            groups[key].rows[match["side"], match["place"]] = row
        return list(groups.values())

    # --- Calls ---

    def _side(self, group: _Group, side: str, role: str) -> list[tuple[tuple[int, ...], Any]]:
        values = []
        for (kind, place), row in group.rows.items():
            if kind == side:
                path = tuple(int(index) for index in place.split(".")[1:])
                value = row.value
                if isinstance(value, ForeignTensor):
                    value = replace(value, role=role, place=place[1:] or "0")
                values.append((path, value))
        return values

    def _call(self, count: int, group: _Group) -> ForeignCall:
        forward = group.phase == "forward"
        inputs = self._side(group, "input", "input" if forward else "grad_output")
        outputs = self._side(group, "output", "output" if forward else "grad_input")
        args: Any = by_place([(path or (0,), value) for path, value in inputs], _FILTERED)
        result: Any = outputs[0][1] if outputs and outputs[0][0] == () else by_place(outputs, _FILTERED) or None
        module = self._module_path(group.module)
        name = our_name(group.kind, group.function)
        level, why, certain = "torch", "" if name else f"torch has no function {group.function}", False
        if forward and "dropout" in group.function.lower() and args:
            # Nothing is dropped while the tool dumps, whatever the p of its row.
            name, args, why, certain = "torch.nn.functional.dropout", (args[0], 0.0), "", True
        elif group.kind == "NN":
            level, why = "module", MODULE
            function, further = function_of_module(group.function, self._parameters(module) if group.first else {})
            if function and forward:
                name, level, why, certain, args = function, "torch", "", True, (*args, *further)
            elif not group.first and function_of_module(group.function, self._parameters(module))[0]:
                why = "its parameters in pt_net.pth are those of before the first step"
        return ForeignCall(
            name=name,
            foreign_name=group.base,
            number=count,
            phase=group.phase,
            step=group.step,
            rank=self._rank,
            level=level,
            module=module,
            stack=self._stack(group),
            args=args,
            kwargs={} if forward else None,
            result=result,
            tensors=tensors_in(args, result),
            why_not=why,
            certain=certain,
            lacks=("inputs before", "inputs after"),  # the inputs are saved when the call has returned
        )

    def _module_path(self, flat: str) -> str:
        """The path of a module, whose dots the row's name has as underscores: as the parameters have it."""
        for key in self._state:
            path = key.rpartition(".")[0]
            if path.replace(".", "_") == flat:
                return path
        return flat

    def _parameters(self, module: str) -> dict[str, ForeignTensor]:
        parameters = {}
        for key, value in self._state.items():
            path, _, own = key.rpartition(".")
            if module and path == module and hasattr(value, "shape"):
                parameters[own] = ForeignTensor(
                    "parameter", own, str(value.dtype), tuple(value.shape), values=f"{self._weights}!{key}"
                )
        return parameters

    def _stack(self, group: _Group) -> tuple[str, ...]:
        count = group.base.rpartition("_")[2]
        newer = f"{_KINDS.get(group.kind, '')}{group.function}({count}) forward"
        older = f"{group.base}_forward_stack_info"
        return stack_lines(self._stacks.get(newer, self._stacks.get(older)))
