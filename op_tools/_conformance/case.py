"""A case: a call of an operator, as a line of JSON that any machine can run.

Everything about cases goes through here: sources make them, load_cases() (lists.py) finds and filters them, make_call()
makes the tensors and gives the call.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import _engine_run_backward
from torch.utils._pytree import tree_leaves

from .._base.checks import checked_choice, checked_object
from .._base.core import Error, has_trait, run_engine, unobserved
from .._torch.generators import seed_generators
from .._torch.python_functions import find
from . import SOURCES, values
from .saved_values import saved_tensors
from .trees import TensorSpec as TensorSpec
from .trees import decode, encode, leaves_in, map_specs

PHASES = ("forward", "backward", "inplace", "out")
VARIANTS = ("function", "method", "inplace", "out", "error")
ONES_ARRIVE = ("nan-lengths", "equal-indices")
"""Mutations whose gradients of results are ones: random ones would cancel where they are added up."""
_FIELDS = ("op", "overload", "variant", "args", "kwargs", "gradient", "mutation", "models", "data", "source", "id")
_BEGIN, _MODELS, _END = (
    '{"op":"',
    ',"models":{',
    ',"source":"',
)  # in the line of a case, which has its fields in this order


@dataclass(frozen=True)
class Case:
    """A call. Two cases with equal ids make the same call with the same bits.

    A field has a factory in place of a default: a default is an attribute of the class, which would hide that a case of
    from_line() is not decoded yet.
    """

    id: str
    """"source/op.overload/hash": the hash is of all that decides the call and its arguments."""
    source: str
    """"op_db", "models", "faults", "captures" or "mine"."""
    op: str
    """The function, as tools name it: "torch.nn.functional.linear", "torch.Tensor.add_", "aten::convolution_backward"."""
    overload: str
    """Of the dispatcher's operator behind it: "Tensor"; "" where there is none of that name."""
    variant: str
    """"function", "method", "inplace", "out" or "error" (a call that has to raise)."""
    args: tuple[Any, ...]
    """Its arguments; a tensor is a TensorSpec."""
    kwargs: dict[str, Any]
    gradient: bool = field(default_factory=bool)
    """A backward pass belongs to it."""
    mutation: str = field(default_factory=str)
    """The change of the source's call: "nhwc", "strided", "alias" ...; "" for nothing."""
    models: dict[str, int] = field(default_factory=dict)
    """Name of a model -> how often a training step makes this call."""
    data: str | None = field(default_factory=lambda: None)
    """Of a captured call: its folder, which has the values."""

    @classmethod
    def make(
        cls, source: str, op: str, variant: str, args: tuple[Any, ...], kwargs: dict[str, Any], **more: Any
    ) -> Case:
        """A case with the id that belongs to it. `more`: the other fields."""
        case = cls("", source, op, more.pop("overload", ""), variant, args, kwargs, **more)
        return replace(case, id=_id_of(case))

    def with_changes(self, **fields: Any) -> Case:
        """A changed case, with the id that belongs to it."""
        case = replace(self, **fields)
        return replace(case, id=_id_of(case))

    def __hash__(self) -> int:
        return hash(self.id)

    @functools.cached_property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The tensors of args, then of kwargs, in reading order; their places are the argument indices of the values."""
        return tuple(leaves_in((self.args, self.kwargs), TensorSpec))

    @property
    def dtype(self) -> str:
        """The main dtype: of the first tensor of floats, else of the first tensor, else of an argument dtype=; "" without."""
        dtypes = [one.dtype for one in self.tensors]
        floats = [one for one in dtypes if one.startswith(("float", "bfloat", "complex"))]
        named = self.kwargs.get("dtype")
        return next(iter([*floats, *dtypes]), str(named).removeprefix("torch.") if named else "")

    @property
    def layout(self) -> str:
        """The first of "expanded", "nhwc", "strided", "offset" that a tensor is, else "contiguous"."""
        layouts = {one.layout for one in self.tensors}
        return next((one for one in ("expanded", "nhwc", "strided", "offset") if one in layouts), "contiguous")

    @functools.cached_property
    def bytes(self) -> int:
        """Bytes of the memory of its tensors."""
        alone = sum(one.storage_size * one.itemsize for one in self.tensors if one.alias is None)
        shared: dict[int, int] = {}
        for spec in self.tensors:
            if spec.alias is not None:
                shared[spec.alias] = max(shared.get(spec.alias, 0), spec.storage_size * spec.itemsize)
        return alone + sum(shared.values())

    def to_json(self) -> str:
        """A line, without its end."""
        return self._line

    @functools.cached_property
    def _line(self) -> str:
        fields = {**_content(self), "source": self.source, "id": self.id}
        if self.models:
            fields["models"] = self.models
        return json.dumps({key: fields[key] for key in _FIELDS if key in fields}, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> Case:
        """The case of a line.

        Raises:
            op_tools.Error: the line is no case, with the reason; or its id is not that of its content.
        """
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Error(f"a case: no JSON: {error}") from None
        case = cls.from_fields(fields)
        if case.id != _id_of(case):
            raise Error(f"case {case.id}: was changed: its content has the id {_id_of(case)}")
        return case

    @classmethod
    def from_line(cls, line: str) -> Case:
        """The case of a line that to_json() gave, which is not checked. It is decoded when more than its id, source or op is
        asked for."""
        case = object.__new__(cls)
        op = line[len(_BEGIN) : line.index('"', len(_BEGIN))]
        source, _, case_id = line[line.rindex(_END) + len(_END) : -2].partition('","id":"')
        vars(case).update(id=case_id, source=source, op=op, _line=line)
        if _MODELS not in line:
            vars(case)["models"] = {}
        return case

    if not TYPE_CHECKING:  # a type checker would take any name for a field

        def __getattr__(self, name: str) -> Any:
            """Of missing attributes: a field of a case of from_line()."""
            if name not in _DECODED or "_line" not in vars(self):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            decoded = self._of(json.loads(self._line))
            vars(self).update((key, getattr(decoded, key)) for key in _DECODED)
            return vars(self)[name]

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Case:
        """The case of an object of JSON. A missing id is made.

        Raises:
            op_tools.Error: there are unknown fields, or values of wrong kinds.
        """
        _check(fields)
        case = cls._of(fields)
        return case if case.id else replace(case, id=_id_of(case))

    @classmethod
    def _of(cls, fields: dict[str, Any]) -> Case:
        args, kwargs = (decode(fields.get(key, empty)) for key, empty in (("args", []), ("kwargs", {"dict": []})))
        if (
            not isinstance(args, list)
            or not isinstance(kwargs, dict)
            or not all(isinstance(one, str) for one in kwargs)
        ):
            raise Error('a case: "args" is a list, "kwargs" is {"dict": [["name", value], ...]}')
        optional = {key: fields[key] for key in ("gradient", "mutation", "models", "data") if key in fields}
        return cls(
            fields.get("id", ""),
            fields.get("source", "mine"),
            fields["op"],
            fields.get("overload", ""),
            fields.get("variant", "function"),
            tuple(args),
            kwargs,
            **optional,
        )


_DECODED = tuple(name for name in Case.__annotations__ if name not in ("id", "source", "op"))
"""The fields that a case of from_line() does not have at first."""


_KINDS = {
    **dict.fromkeys(("id", "source", "op", "overload", "variant", "mutation", "data"), str),
    "args": list,
    "kwargs": dict,
    "gradient": bool,
    "models": dict,
}


def _check(fields: Any) -> None:
    checked_object("a case", fields, _KINDS, needed=("op",))
    for key, known in (("source", SOURCES), ("variant", VARIANTS)):
        checked_choice(f"a case: {key}", fields.get(key, known[0]), known)
    if any(type(one) is not int or one < 1 for one in fields.get("models", {}).values()):
        raise Error("a case: models has a number of calls for each name")


def _content(case: Case) -> dict[str, Any]:
    """The facts that decide the call, as JSON; no defaults."""
    fields: dict[str, Any] = {"op": case.op, "variant": case.variant, "args": encode(list(case.args))}
    if case.kwargs:
        fields["kwargs"] = encode(case.kwargs)
    for key in ("overload", "gradient", "mutation", "data"):
        if value := getattr(case, key):
            fields[key] = value
    return fields


def _id_of(case: Case) -> str:
    text = json.dumps(_content(case), separators=(",", ":"), sort_keys=True)
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    op = case.op.replace("::", ".") + (f".{case.overload}" if case.overload else "")
    return f"{case.source}/{op}/{digest}"


# --- Running a case -----------------------------------------------------------------------------------------------------


@dataclass
class PreparedCall:
    """A case with its tensors, on a device."""

    case: Case
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: list[torch.Tensor]
    """The tensors of the case in its order: the leaves that gradients are asked for are among them."""
    seed: int
    """For the generators of torch, before the call."""
    device: torch.device

    def seed_generators(self) -> None:
        """The CPU's and the device's."""
        seed_generators(self.seed, [self.device.type])

    def run(self) -> Any:
        """Makes the call; its outputs. The call's exception passes through."""
        self.seed_generators()
        args, kwargs = self.args, self.kwargs
        if self.case.gradient and self.case.variant == "inplace":
            # A leaf that requires grad may not be changed in place.
            args = (unobserved(torch.clone, args[0]), *args[1:])
        with torch.set_grad_enabled(self.case.gradient):
            return self.function(*args, **kwargs)

    def backward(self, outputs: Any) -> list[torch.Tensor | None]:
        """The gradients of those inputs that require them, in their order, for random gradients of the outputs.

        Args:
            outputs: of :meth:`run`.
        """
        targets = [one for one in leaves_of(outputs) if one.requires_grad and one.grad_fn is not None]
        wanted = [one for one in self.inputs if one.requires_grad]
        if not targets or not wanted:
            return [None] * len(wanted)
        arriving = [self._cotangent(one, place) for place, one in enumerate(targets)]
        # As torch.autograd.grad does after its check of shapes, for which it imports sympy: 0.4 s in each process.
        gradients = run_engine(
            _engine_run_backward,
            tuple(targets),
            tuple(arriving),
            False,  # keep the graph
            False,  # make a graph of the gradients
            tuple(wanted),
            allow_unreachable=True,
            accumulate_grad=False,
        )
        return list(gradients)

    def _cotangent(self, output: torch.Tensor, place: int) -> torch.Tensor:
        stride: tuple[int, ...] | None = None
        if self.case.mutation == "strided-gradient" and output.dim():
            stride = strided(tuple(output.shape))
        recipe = "uniform 1 1" if self.case.mutation in ONES_ARRIVE else "normal"
        spec = TensorSpec(tuple(output.shape), str(output.dtype).removeprefix("torch."), stride, values=recipe)
        # It belongs to the case: tools that are on look at the call alone.
        tensors: list[torch.Tensor] = unobserved(
            make_tensors, self.case.id, [spec], output.device, prefix=f"gradient {place} "
        )
        return tensors[0]


def strided(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a tensor that has a gap behind every element."""
    return tuple(2 * one for one in TensorSpec(shape, "float32").strides)


def leaves_of(tree: Any) -> list[torch.Tensor]:
    """The tensors in a call's result, in reading order."""
    return [one for one in tree_leaves(tree) if isinstance(one, torch.Tensor)]


def make_tensors(case_id: str, specs: list[TensorSpec], device: torch.device, prefix: str = "") -> list[torch.Tensor]:
    """The tensors of a case. Those with an equal alias share their memory.

    Args:
        case_id: the key of the values, with the place of each tensor.
        specs: of the tensors.
        device: where they are made; the values come from the CPU. On "meta" there are none.
        prefix: in front of the places.

    Raises:
        op_tools.Error: the values do not fit a tensor.
    """
    tensors: list[torch.Tensor] = []
    storages: dict[int, torch.Tensor] = {}
    for place, spec in enumerate(specs):
        storage = None if spec.alias is None else storages.get(spec.alias)
        if storage is None:
            size = max(
                [
                    spec.storage_size,
                    *(one.storage_size for one in specs if spec.alias is not None and one.alias == spec.alias),
                ]
            )
            storage = _storage(spec, size, f"{case_id}#{prefix}{place}", device)
            if spec.alias is not None:
                storages[spec.alias] = storage
        if storage.dtype != spec.torch_dtype:
            raise Error(f"tensors with the alias {spec.alias} have several dtypes")
        tensor = storage.as_strided(spec.shape, spec.strides, spec.offset)
        tensors.append(tensor.requires_grad_(True) if spec.requires_grad else tensor)
    return tensors


def _storage(spec: TensorSpec, size: int, name: str, device: torch.device) -> torch.Tensor:
    """The whole memory of a tensor as a row. Generated values fill the gaps, too: a kernel that reads them is found."""
    dtype = spec.torch_dtype
    if device.type == "meta":
        return torch.empty(size, dtype=dtype, device=device)
    key = values.key_of(*name.rsplit("#", 1))
    plain = spec.layout == "contiguous" and size == spec.storage_size
    if plain or (isinstance(spec.values, str) and values.fills_gaps(spec.values)):
        return values.make_values(spec.values, dtype, size, key).to(device)
    elements = values.make_values(spec.values, dtype, spec.numel, key)
    row = torch.zeros(size, dtype=dtype)
    view, content = row.as_strided(spec.shape, spec.strides, spec.offset), elements.reshape(spec.shape)
    for dim, step in enumerate(spec.strides):
        if step == 0 and spec.shape[dim] > 1:  # the elements along it share their memory
            view, content = view.narrow(dim, 0, 1), content.narrow(dim, 0, 1)
    view.copy_(content)
    return row.to(device)


def resolve(op: str) -> Callable[..., Any]:
    """The function of a name.

    Raises:
        op_tools.Error: torch has none that a case may call.
    """
    name = op
    if op.startswith("aten::"):
        base, _, overload = op.removeprefix("aten::").partition(".")
        name = f"torch.ops.aten.{base}" + (f".{overload}" if overload else "")
    function = find(name)
    if function is None:
        raise Error(f"{op}: is no operator of this torch ({torch.__version__}) that a case may call")
    return function


def make_call(case: Case, device: torch.device) -> PreparedCall:
    """A case with its tensors on a device.

    Args:
        case: of :func:`load_cases`.
        device: where the tensors are made.

    Raises:
        op_tools.Error: this torch has no such operator, values do not fit, or a captured call cannot be read.
    """
    name = case.op
    if name.startswith("aten::") and case.overload:
        name += f".{case.overload}"
    function = resolve(name)
    if case.data is not None:
        inputs = saved_tensors(str(case.data), case.tensors, device)
    else:
        try:
            inputs = make_tensors(case.id, list(case.tensors), device)
        except (Error, RuntimeError) as error:
            raise Error(f"case {case.id}: {error}") from None
        if has_trait(case.op, "needs_CPU_tensors"):
            inputs[1:] = [one.cpu() for one in inputs[1:]]
    left = iter(inputs)
    args, kwargs = map_specs((case.args, case.kwargs), lambda _: next(left), device)
    seed = int(case.id.rpartition("/")[2][:8] or "0", 16)
    return PreparedCall(case, function, args, kwargs, inputs, seed, device)
