"""Cases out of captured calls, with their values: any op_capture_result, of OpCapture or of ditorch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

from .._base.captured_calls import CapturedCall, load_call
from .._base.core import Error, find_calls, log_warn
from .case import Case, resolve
from .recorded import changes_first
from .recordings import recorded_cases, recordings_in
from .saved_values import on_accelerator
from .trees import TensorSpec, encode, map_tree


def captured_cases(root: Path, lost: list[str]) -> Iterator[Case]:
    """The calls in a folder of captures, or in a container; and those of recordings: of a file, or of those in the folder.
    Those that no case can hold are named in the log. Of a program that used an accelerator the calls on the CPU are left
    out: they are no matter of the device.

    Args:
        root: a folder, a container or a recording.
        lost: gets a sentence for each captured call that is damaged, and for those that were saved and are missing.

    Raises:
        op_tools.Error: there is no captured call and no recording.
    """
    recordings = recordings_in(root)
    for path in recordings:
        yield from recorded_cases(path)
    if not root.is_file() or not recordings:
        yield from _saved_cases(root, lost, may_be_none=bool(recordings))


def _saved_cases(root: Path, lost: list[str], *, may_be_none: bool) -> Iterator[Case]:
    calls, problems, _ = find_calls(os.fsencode(root))
    if not calls and not may_be_none:
        raise Error(f"{root}: holds no captured call and no recording")
    damaged = list(problems)
    cases: list[tuple[Case, bool]] = []
    for path, *_ in calls:
        try:
            call = load_call(path)
        except Error as error:
            damaged.append(f"{path}: is no case: {error}")
            continue
        try:
            cases.append((_case_of(path, call), any(on_accelerator(call))))
        except Error as error:
            log_warn(f"{path}: is no case: {error}")
    for problem in damaged:
        log_warn(problem)
    lost += damaged
    away = sum(is_away for _, is_away in cases)
    if 0 < away < len(cases):
        log_warn(f"{root}: {len(cases) - away} calls on the CPU are no cases: {away} are on an accelerator")
    yield from (case for case, is_away in cases if is_away or not away)


def _case_of(path: str, call: CapturedCall) -> Case:
    resolve(call.name)
    metas = call.meta.get("inputs", [])
    requires = iter([bool(one.get("requires_grad", False)) for one in metas if isinstance(one, dict)])
    wants_grad = call.meta.get("level", "torch") == "torch"
    storages: dict[int, int] = {}

    def spec(tensor: torch.Tensor) -> TensorSpec:
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
            raise Error("a tensor is sparse, nested or quantized")
        memory = storages.setdefault(tensor.untyped_storage()._cdata, len(storages))
        dtype = str(tensor.dtype).removeprefix("torch.")
        grad = next(requires, False) and wants_grad
        stride, offset = tuple(tensor.stride()), int(tensor.storage_offset())
        return TensorSpec(tuple(tensor.shape), dtype, stride, offset, "saved", grad, memory)

    args, kwargs = map_tree((call.args, call.kwargs), lambda one: spec(one) if isinstance(one, torch.Tensor) else one)
    encode([list(args), kwargs])  # raises for values that JSON does not hold
    return Case.make(
        "captures",
        call.name,
        "inplace" if changes_first(call.name) else "function",
        tuple(args),
        kwargs,
        gradient=call.grad_outputs is not None,
        data=path,
    )
