"""The dumper of PyTorch 1.5 for Ascend (torch.utils.dumper): ``from op_tools_compat.pytorch15 import dumper``.

Writes every operator and every autograd node with inputs and outputs to a .h5 file, or those only whose results overflow; or
replaces the inputs of operators by those of another run's file.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib
import re
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from typing_extensions import Self

from op_tools import Call, Error, Hook, HookScope
from op_tools._base.core import log_warn
from op_tools.formats import ForeignTensor, load_values
from op_tools.formats._model import leaves

from ._align import align
from ._h5 import Entry, H5Writer, entries, ir_name_of

# Operators that are no computation.
_NOT_DUMPED = frozenset(("aten::_to_copy", "aten::_local_scalar_dense", "aten::detach", "aten::lift_fresh"))
# Names that differ between devices, by the name that they have in a map.
_SAME_NODES = {
    "NpuConvolutionBackward": "ConvolutionBackward",
    "CudnnConvolutionBackward": "ConvolutionBackward",
    "ThnnConvDepthwise2DBackward": "ConvolutionBackward",
    "CudnnBatchNormBackward": "NativeBatchNormBackward",
}


def dumper(
    check_overflow: bool = False,
    dump_path: str = ".",
    load_file_path: str = "",
    use_load: bool = False,
    load_with_acl_dump: bool = False,
) -> Dumper:
    """Dumps the operators of the code in a ``with`` statement.

    Args:
        check_overflow: write only operators whose results have NaN or infinities that their inputs have not; their names are
            printed.
        dump_path: the folder for the .h5 file, whose name is the time.
        load_file_path: the .h5 file of another run.
        use_load: replace the inputs of operators by those of that file: of each operator the first entry not used yet with
            the same shapes, dtypes and numbers.
        load_with_acl_dump: also dump the device's operators behind those that were loaded, by acl.json in the working
            directory. Needs torch_npu.

    Returns:
        the context manager; its `path` is the file ("" if nothing was written), `overflowed` the names of the operators that
        did, and `loaded` the entries that were used.

    Raises:
        op_tools.Error: torch_npu is needed and not there, or the file to load cannot be read.
    """
    return Dumper(check_overflow, dump_path, load_file_path, use_load, load_with_acl_dump)


class Dumper:
    """The result of :func:`dumper`.

    Args:
        check_overflow: as of dumper.
        dump_path: as of dumper.
        load_file_path: as of dumper.
        use_load: as of dumper.
        load_with_acl_dump: as of dumper.
    """

    def __init__(
        self, check_overflow: bool, dump_path: str, load_file_path: str, use_load: bool, load_with_acl_dump: bool
    ) -> None:
        if use_load and not load_file_path:
            raise Error("dumper: use_load=True needs load_file_path")
        self.check_overflow = check_overflow
        self.path = ""
        self.overflowed: list[str] = []
        self._folder = Path(dump_path)
        self._source = _Source(Path(load_file_path)) if use_load else None
        self._acl = _acl() if load_with_acl_dump else None
        self._writer: H5Writer | None = None
        self._lock = threading.Lock()
        self._scopes = contextlib.ExitStack()
        self.is_on = False

    @property
    def loaded(self) -> list[str]:
        """The entries whose inputs were used: "add_Tensor/3"."""
        return list(self._source.used) if self._source else []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as scopes:
            scopes.callback(HookScope(_Nodes(self), level="torch").start().stop)
            scopes.callback(HookScope(_Operators(self), level="aten").start().stop)
            self._scopes = scopes.pop_all()
        self.is_on = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_on = False
        self._scopes.close()

    def _before(self, name: str, inputs: dict[str, Any]) -> bool:
        """Replaces the inputs of an operator by those of the file; whether there were some."""
        if self._source is None or not self._source.load(name, inputs):
            return False
        if self._acl:
            self._acl.init_dump()
            self._acl.set_dump("acl.json")
        return True

    def _after(self, name: str, inputs: dict[str, Any], outputs: dict[str, Any], was_loaded: bool) -> None:
        """Writes a call, or in overflow mode only a call that overflowed."""
        if was_loaded and self._acl:
            self._acl.finalize_dump()
        if self.check_overflow:
            if _all_finite(outputs) or not _all_finite(inputs):
                return
            self.overflowed.append(name)
            log_warn(f"overflow: {name}")
        with self._lock:
            if self._writer is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                now = datetime.datetime.now().strftime("%Y%m%d_%H%M%S.%f")
                self.path = str(self._folder / f"{now}.h5")
                self._writer = H5Writer(self.path)
            self._writer.add(name, inputs, outputs)


def get_op_map(origin: str | Path, target: str | Path) -> list[tuple[str | None, str | None]]:
    """Which operators of two .h5 files do the same, in their order.

    Args:
        origin: the file of a run.
        target: the file of the other.

    Returns:
        pairs as ("add_Tensor/1", "add_Tensor/3"); None where a run has no such operator.

    Raises:
        op_tools.Error: a file cannot be read.
    """
    sides = [entries(Path(path)) for path in (origin, target)]
    keys = [[_entry_key(entry) for entry in side] for side in sides]
    names = [[f"{entry.ir_name}/{entry.seqid}" for entry in side] for side in sides]
    return [(names[0][a] if a is not None else None, names[1][b] if b is not None else None) for a, b in align(*keys)]


def _entry_key(entry: Entry) -> tuple[Any, ...]:
    name = _SAME_NODES.get(entry.ir_name, entry.ir_name)
    shapes = [leaf.shape for leaf in leaves(list(entry.outputs.values())) if isinstance(leaf, ForeignTensor)]
    return (name, *shapes)


# --- Dumping ---


class _Operators(Hook):
    """Operators of the forward pass; the backward pass is dumped by its nodes, as 1.5 does."""

    def __init__(self, dump: Dumper) -> None:
        self._dump = dump

    def before(self, call: Call) -> tuple[str, dict[str, Any], bool] | None:
        if torch._C._current_graph_task_id() != -1 or call.name in _NOT_DUMPED:
            return None
        schema = _dumped_schema(call.name)
        if schema is None:
            return None
        inputs = {one.name: value for one, value in zip(schema.arguments, call.args, strict=False)} | call.kwargs
        name = ir_name_of(call.name)
        was_loaded = self._dump._before(name, inputs)
        if schema.is_mutable:
            inputs = {key: _copied(value) for key, value in inputs.items()}
        return name, inputs, was_loaded

    def after(self, call: Call, state: object) -> None:
        if isinstance(state, tuple) and not call.error:
            name, inputs, was_loaded = state
            results = call.result if isinstance(call.result, (tuple, list)) else (call.result,)
            plain = isinstance(call.result, list)  # a list of tensors is a single result
            outputs = {"result": call.result} if plain or len(results) == 1 else {}
            outputs = outputs or {f"result{i}": one for i, one in enumerate(results)}
            self._dump._after(name, inputs, outputs, was_loaded)


class _Nodes(Hook):
    """Autograd nodes, found from the results of functions, and watched by hooks of their own."""

    def __init__(self, dump: Dumper) -> None:
        self._dump = dump

    def after(self, call: Call, _: object) -> None:
        waiting = [one.grad_fn for one in leaves(call.result) if isinstance(one, torch.Tensor)]
        while waiting:
            node: Any = waiting.pop()
            if node is None or node.metadata.get(_WATCHED) is self._dump:
                continue
            node.metadata[_WATCHED] = self._dump
            if type(node).__name__ != "AccumulateGrad":
                node.register_hook(functools.partial(self._ran, type(node).__name__))
            waiting += [below for below, _ in node.next_functions]

    def _ran(self, kind: str, results: Any, inputs: Any) -> None:
        if not self._dump.is_on:
            return
        with torch._C.DisableTorchFunction(), torch.no_grad():
            try:
                grads = [one for one in inputs if one is not None]
                gradients = [one for one in results if one is not None]
                entries = {"grads": grads, **_saved_by_node()}
                self._dump._after(re.sub(r"\d+$", "", kind), entries, {"grad_inputs": gradients}, False)
            except Exception as error:  # the program's backward pass goes on
                log_warn(f"dumper: {kind} is not dumped: {error}")


_WATCHED = "op_tools_compat.pytorch15"


def _saved_by_node() -> dict[str, Any]:
    """The tensors that the running node saved for its backward."""
    node = torch._C._current_autograd_node()
    saved = {}
    for name in dir(node):
        if name.startswith("_saved_"):
            with contextlib.suppress(RuntimeError):  # changed in place since, or freed
                saved[name.removeprefix("_saved_")] = getattr(node, name)
    return saved


@functools.cache
def _dumped_schema(name: str) -> Any:
    """The schema of an operator that is dumped; None for views, which compute nothing."""
    base, _, overload = name.partition("::")[2].partition(".")
    operator = getattr(getattr(torch.ops.aten, base, None), overload or "default", None)
    schema = getattr(operator, "_schema", None)
    if schema is None or not name.startswith("aten::"):
        return None
    is_view = any(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns)
    return None if is_view else schema


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return [_copied(one) for one in value] if isinstance(value, (list, tuple)) else value


def _all_finite(values: dict[str, Any]) -> bool:
    tensors = [one for one in leaves(list(values.values())) if isinstance(one, torch.Tensor)]
    return all(bool(torch.isfinite(one).all()) for one in tensors if one.is_floating_point() or one.is_complex())


# --- Loading ---


class _Source:
    """The entries of a file by operator, each used once."""

    def __init__(self, file: Path) -> None:
        if not file.is_file():
            raise Error(f"{file}: there is no such file to load")
        self.used: list[str] = []
        self._waiting: dict[str, list[Entry]] = defaultdict(list)
        for entry in entries(file):
            self._waiting[entry.ir_name].append(entry)

    def load(self, name: str, inputs: dict[str, Any]) -> bool:
        """Overwrites the tensors of a call with those of the first entry that is like it; whether there is one."""
        for entry in self._waiting.get(name, []):
            pairs = [(inputs[key], value) for key, value in entry.inputs.items() if inputs.get(key) is not None]
            if len(pairs) != len(entry.inputs) or not all(_fits(live, saved) for live, saved in pairs):
                continue
            self._waiting[name].remove(entry)
            self.used.append(f"{name}/{entry.seqid}")
            for live, saved in pairs:
                _load_into(live, saved)
            return True
        return False


def _fits(live: Any, saved: Any) -> bool:
    if isinstance(saved, ForeignTensor):
        if not isinstance(live, torch.Tensor) or tuple(live.shape) != saved.shape:
            return False
        kinds = [str(live.dtype), saved.dtype]
        return kinds[0] == kinds[1] or set(kinds) == {"torch.int32", "torch.int64"}
    if isinstance(saved, list):
        is_list = isinstance(live, (list, tuple)) and len(live) == len(saved)
        return is_list and all(_fits(*pair) for pair in zip(live, saved, strict=True))
    if isinstance(saved, float) or isinstance(live, float):
        return isinstance(live, (int, float)) and not isinstance(live, bool)
    return bool(live == saved)


def _load_into(live: Any, saved: Any) -> None:
    if isinstance(saved, list):
        for target, other in zip(live, saved, strict=True):
            _load_into(target, other)
    elif isinstance(saved, ForeignTensor):
        with torch.no_grad():
            # .data: autograd must not see it, as it does not see the 1.5 dumper's.
            live.data.copy_(load_values(saved))


def _acl() -> Any:
    try:
        return importlib.import_module("torch_npu").npu
    except ImportError:
        raise Error("dumper: load_with_acl_dump=True needs torch_npu and its device") from None


__all__: Sequence[str] = ["Dumper", "dumper", "get_op_map"]
