"""Makes a support table: which of torch's operators and Python functions a device of this machine runs.

Called by `op-tools support`. The dispatcher says which operators are registered; torch's own sample calls, made on the device, say which
operators a function calls, and which of them the device refuses.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from .._torch.backends import usable_device
from .._torch.op_samples import operators, seed
from .._torch.operator_support import Tried, Watch, dispatch_key, on, registration
from ._profile import Part, Profile
from ._sources import find_sources, read_facts
from ._table import FORMAT, OPERATOR_METHODS, SupportTable

_FLOATS = (torch.float32, torch.float64)


def make_table(device: str, samples: int = 1000, progress: Callable[[str], None] = lambda _: None) -> SupportTable:
    """The operators and functions that a device runs.

    Args:
        device: a device of this machine, such as "cpu", "cuda" or "sim"; its backend has been imported.
        samples: sample calls per function at most.
        progress: is called with a line of text now and then.

    Returns:
        the table; the same on every run but for random samples.

    Raises:
        op_tools.Error: there is no such device, or torch's sample calls cannot be imported.
    """
    usable_device(device)
    key = dispatch_key(device)
    watch = Watch(device)
    functions: dict[str, dict[str, Any]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = _databases()
        for names, calls in itertools.chain(_function_calls(tests[0], samples), _module_calls(tests[1], samples)):
            progress(names[0])
            row = _row_of_calls(calls, watch, device)
            functions.update((name, row) for name in names if name not in functions)
    operators = _operators(key, watch.tried)
    _add_by_name(functions, operators)
    return SupportTable(
        {
            "format": FORMAT,
            "torch": torch.__version__,
            "device": torch.device(device).type,
            "backend": key,
            "operators": operators,
            "functions": dict(sorted(functions.items())),
            "names": _public_names(),
        }
    )


def names_only() -> SupportTable:
    """A table of this torch's names, in which no function is judged: for modes that ask for no support."""
    return SupportTable(
        {
            "format": FORMAT,
            "torch": torch.__version__,
            "device": "none",
            "backend": "",
            "operators": {},
            "functions": {},
            "names": _public_names(),
        }
    )


def _databases() -> tuple[list[Any], list[Any]]:
    """torch's samples of functions, and of modules."""
    functions = list(operators().values())
    from torch.testing._internal.common_modules import module_db

    return functions, module_db


# Of a device: prepares a call, whose inputs are then there, and gives a function that makes it.
_Call = Callable[[str], Callable[[], Any]]


def _function_calls(op_db: list[Any], count: int) -> Iterator[tuple[list[str], list[_Call]]]:
    """The names of each function of the database, and its sample calls."""
    entries: dict[str, list[Any]] = {}
    for info in op_db:
        entries.setdefault(info.name, []).append(info)
    for infos in entries.values():
        calls = [call for info in infos for call in _samples(info, count)]
        yield _names_of(infos[0]), calls


def _samples(info: Any, count: int) -> list[_Call]:
    dtypes = info.supported_dtypes("cpu")
    dtype = next((one for one in _FLOATS if one in dtypes), None) or min(dtypes, key=str, default=None)
    if dtype is None:
        return []
    gradients = info.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    seed()
    try:
        samples = list(itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=gradients), count))
    except Exception:  # some samples cannot be made without a GPU
        return []
    return [_sample_call(info, sample) for sample in samples]


def _sample_call(info: Any, sample: Any) -> _Call:
    def prepare(device: str) -> Callable[[], Any]:
        inputs, args, kwargs = on(device, (sample.input, sample.args, sample.kwargs))
        if "device" in kwargs:
            kwargs["device"] = device

        def call() -> Any:
            result = info.op(inputs, *args, **kwargs)
            process = sample.output_process_fn_grad
            return process(result) if info.supports_autograd and process else result

        return call

    return prepare


def _module_calls(module_db: list[Any], count: int) -> Iterator[tuple[list[str], list[_Call]]]:
    for info in module_db:
        seed()
        try:
            samples = info.module_inputs_func(
                info, device="cpu", dtype=torch.float32, requires_grad=True, training=True
            )[:count]
        except Exception:  # of a module that needs a GPU
            samples = []
        yield [f"torch.{info.name}"], [_module_call(info.module_cls, one) for one in samples if one.forward_input]


def _module_call(module_class: Any, sample: Any) -> _Call:
    def prepare(device: str) -> Callable[[], Any]:
        module = module_class(*sample.constructor_input.args, **sample.constructor_input.kwargs).to(device)
        args, kwargs = on(device, (sample.forward_input.args, sample.forward_input.kwargs))
        return lambda: module(*args, **kwargs)

    return prepare


def _row_of_calls(calls: list[_Call], watch: Watch, device: str) -> dict[str, Any]:
    """The operators of a function's sample calls, forward and backward. Each is made as a program makes it, and again under the
    watch, which goes on behind an operator that the device refuses."""
    forward: list[list[str]] = []
    backward: set[str] = set()
    errors = 0
    for call, plain in zip(calls, _profiled(calls, device), strict=True):
        seen, seen_backward, failed = _watched(call, watch, device)
        errors += failed
        for part in plain:
            part.operators -= watch.elsewhere - seen - seen_backward
            watch.add(part.operators - seen - seen_backward, part.refused, part.error)
        refused = any(part.refused for part in plain)
        forward.append(sorted(plain[0].operators | seen if refused else plain[0].operators))
        backward |= plain[1].operators | seen_backward if refused else plain[1].operators
    different = sorted({tuple(one) for one in forward if one})
    return {
        "samples": len(calls),
        "errors": errors,
        "operators": [list(one) for one in different],
        "backward": sorted(backward),
    }


def _profiled(calls: list[_Call], device: str) -> list[tuple[Part, Part]]:
    """The operators of the calls without a watch: forward, backward."""
    profile = Profile(dispatch_key(device))
    pairs = []
    with profile.on():
        for call in calls:
            prepared = result = None
            seed()
            with profile.part():  # copies to the device are not of the call
                prepared = call(device)
            with profile.part() as forward:
                result = prepared() if prepared is not None else None
            with profile.part() as backward:
                _run_backward(result)
            pairs.append((forward, backward))
    return pairs


def _watched(call: _Call, watch: Watch, device: str) -> tuple[set[str], set[str], bool]:
    """The operators of a call under the watch: forward, backward; whether it fails with another error than a refusal."""
    watch.elsewhere.clear()
    seed()
    seen: set[str] = set()
    seen_backward: set[str] = set()
    try:
        prepared = call(device)
        with watch.call() as seen:
            result = prepared()
    except Exception:  # of the sample on this device: it says nothing of an operator
        return seen, seen_backward, True
    try:
        with watch.call() as seen_backward:
            _run_backward(result)
    except Exception:  # a result that has no derivative
        return seen, set(), False
    return seen, seen_backward, False


def _run_backward(result: Any) -> None:
    targets = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor) and one.grad_fn is not None]
    if targets:
        torch.autograd.backward(targets, [torch.ones_like(one) for one in targets])


def _names_of(info: Any) -> list[str]:
    """How a program may call a function of the database."""
    names = []
    for entry in (info, *info.aliases):
        name = entry.name if entry.name.startswith("torch.") else f"torch.{entry.name}"
        if _resolves(name):
            names.append(name)
        for variant in (entry.method_variant, entry.inplace_variant):
            name = getattr(variant, "__name__", "")
            if name and hasattr(torch.Tensor, name):
                names.append(f"torch.Tensor.{name}")
        if hasattr(torch.Tensor, entry.name.split(".")[-1]) and "." not in entry.name:
            names.append(f"torch.Tensor.{entry.name}")
    return list(dict.fromkeys(names)) or [f"torch.{info.name}"]


def _resolves(name: str) -> bool:
    place: Any = torch
    for part in name.split(".")[1:]:
        if not hasattr(place, part):
            return False
        place = getattr(place, part)
    return True


def _operators(key: str, tried: dict[str, Tried]) -> dict[str, dict[str, Any]]:
    """A row for each operator of the dispatcher: its status, and why."""
    rows: dict[str, dict[str, Any]] = {}
    for name in sorted({*torch._C._dispatch_get_all_op_names(), *tried}):
        if not name.startswith("aten::") and name not in tried:
            continue
        kind, evidence = registration(name, key)
        calls = tried.get(name, Tried())
        row: dict[str, Any] = {"status": kind, "evidence": evidence}
        if calls.refusals and not calls.ran:
            row["status"], row["evidence"] = (
                "missing",
                f"refused {calls.refusals} of {calls.refusals} calls: {calls.error}",
            )
        elif calls.refusals:
            row["evidence"] += f"; refused {calls.refusals} of {calls.refusals + calls.ran} calls: {calls.error}"
        elif calls.ran:
            row["evidence"] += f"; ran {calls.ran} sample calls"
            if kind == "missing":
                row["status"] = "kernel"  # a key that torch serves otherwise, such as Meta or Functionalize
        if calls.parts:
            row["parts"] = sorted(calls.parts)
        if calls.dtypes:
            row["dtypes"] = dict(sorted(calls.dtypes.items()))
        rows[name] = row
    return rows


def _add_by_name(functions: dict[str, dict[str, Any]], operators: dict[str, dict[str, Any]]) -> None:
    """Functions without samples of their own: as the function of the same name that has some, else by the operator's name."""
    by_base: dict[str, dict[str, Any]] = {}
    for name, row in functions.items():
        by_base.setdefault(name.rsplit(".", 1)[1], row)
    overloads: dict[str, list[str]] = {}
    for operator in operators:
        overloads.setdefault(operator.removeprefix("aten::").split(".")[0], []).append(operator)
    for name in sorted(_overridable()):
        if name in functions:
            continue
        own = name.rsplit(".", 1)[1]
        base = OPERATOR_METHODS.get(own, own)
        plain = base if base in by_base or base in overloads else base.rstrip("_")
        if plain in by_base:
            functions[name] = {**by_base[plain], "as": plain}
        elif plain in overloads:
            one_of = [[one] for one in overloads[plain] if not one.endswith("out")] or [
                [overload] for overload in overloads[plain]
            ]
            functions[name] = {"samples": 0, "errors": 0, "operators": one_of, "backward": []}


def _overridable() -> Iterable[str]:
    for place, group in torch.overrides.get_overridable_functions().items():
        prefix = "torch.Tensor" if place is torch.Tensor else getattr(place, "__name__", "torch")
        for function in group:
            name = torch.overrides.resolve_name(function) or f"{prefix}.{getattr(function, '__name__', '')}"
            if name.startswith("torch.") and "._" not in name.replace(".__", "."):
                yield name
    yield from (f"torch.{one}" for one in dir(torch._C._VariableFunctions) if not one.startswith("_"))
    yield from (f"torch.Tensor.{one}" for one in OPERATOR_METHODS)


@functools.cache
def _public_names() -> dict[str, list[str]]:
    """The names in torch's public modules and in the tensor, by module. Modules that nothing has imported yet
    are read, not imported: some need packages that are not there."""
    public = {"torch.Tensor": sorted(one for one in dir(torch.Tensor) if not one.startswith("_"))}
    folder = Path(torch.__file__).parent
    for source in find_sources(folder)[0]:
        name = source.module
        if not source.path.endswith(".py") or "._" in name or name.startswith(("torch.testing", "torch.lib")):
            continue
        module = sys.modules.get(name)
        if type(module) is types.ModuleType:
            names = {*vars(module), *_names_in_all(module)}
        else:
            facts = read_facts(source)
            names = {*facts.exports, *facts.values}
        public[name] = sorted(one for one in names if not one.startswith("_"))
    for name, module in sys.modules.items():  # made at run time: torch.ops, torch.sim
        if name.startswith("torch.") and "._" not in name and name not in public and type(module) is types.ModuleType:
            public[name] = sorted(one for one in vars(module) if not one.startswith("_"))
    return dict(sorted(public.items()))


def _names_in_all(module: types.ModuleType) -> list[str]:
    names = inspect.getattr_static(module, "__all__", [])
    return [one for one in names if isinstance(one, str)] if isinstance(names, (list, tuple)) else []
