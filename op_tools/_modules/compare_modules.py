"""compare_modules: a model on two devices or in two dtypes, module by module."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from .._base.core import Error, admits_module, judge_tensors, log_warn
from .._base.result_rows import claim_folder, write_rows
from .._base.results import DEFAULT_ROWS, Result, Shown, sorted_rows, text_table, worded
from .._base.tool_descriptions import Names, joined
from .._base.verdict import Verdict, verdict_of
from .._torch.module_names import without_wrapper
from .module_runs import ModuleCall, ModuleRun, Tensors, copied, float_dtype_of, inputs_for, model_device, run_model

FOLDER = "op_compare_modules_result"
FILE = "modules.jsonl"
"""In a folder of FOLDER."""


@dataclass(frozen=True)
class ModuleRow:
    """The comparison of a tensor of a module: an output, or a gradient. NaN where no number could be computed."""

    module: str
    """Path as in `named_modules()`: "layer3.0.conv1"; "" is the model itself."""
    kind: str
    """Name of the module's class."""
    call: int
    """Which call of this module, from 0."""
    what: str
    """Which tensor: "output", "output [1]", "input grad", "weight grad"."""
    phase: str
    """"forward" or "backward"."""
    verdict: str
    """`agrees`, `differs` or `not judged`."""
    origin: str
    """Of a failure: "born" in this module or "carried" into it. Otherwise ""."""
    share: float
    """The largest ratio of a measured error to its limit; the limit is 1."""
    max_abs: float
    """Largest absolute difference to the other side."""
    max_rel: float
    """Largest relative difference to the other side."""
    rmse: float
    """Root mean square of the differences."""
    cosine: float
    """Cosine similarity of the two tensors."""
    max_ulp: float
    """Largest difference in units in the last place of the dtype."""
    dtype: str
    """"float32", without "torch."."""
    shape: list[int]
    """Sizes of the tensor."""
    reason: str
    """The reason of the verdict, in words."""


@dataclass(frozen=True, repr=False)
class ModuleComparison(Result):
    """The result of compare_modules."""

    rows: list[ModuleRow] = field(default_factory=list)
    """A row per tensor, in the order of the computation."""
    notes: list[str] = field(default_factory=list)
    """Tensors that could not be compared, and why."""
    root: str = ""
    """Folder of the files; "" if nothing was written."""

    @property
    def verdict(self) -> Verdict:
        """`agrees` only where most was judged."""
        verdicts = Counter(row.verdict for row in self.rows)
        return verdict_of(
            wrong=verdicts[Verdict.DIFFERS] > 0, unseen=verdicts[Verdict.AGREES] <= verdicts[Verdict.NOT_JUDGED]
        )

    @property
    def ok(self) -> bool:
        """True if the verdict is `agrees`: all modules agree, and most was judged."""
        return self.verdict is Verdict.AGREES

    @property
    def first(self) -> ModuleRow | None:
        """The first wrong result whose module had right inputs; forward before backward. None: all agree."""
        failed = [row for row in self.rows if row.verdict == Verdict.DIFFERS]
        born = [row for row in failed if row.origin == "born"]
        return next(iter(born or failed), None)

    def worst(self) -> list[ModuleRow]:
        """All rows: failures that are born, then failures that are carried, then the rest; the largest share first."""
        groups = {"born": 0, "carried": 1, "": 2}
        order = {id(row): number for number, row in enumerate(self.rows)}
        born_in_order = sorted(self.rows, key=lambda row: (groups[row.origin], -row.share, order[id(row)]))
        first = self.first
        return [row for row in born_in_order if row is first] + [row for row in born_in_order if row is not first]

    def table(self, sort_by: str | None = None, row_limit: int = DEFAULT_ROWS) -> str:
        """The rows as a text table.

        Args:
            sort_by: a field of the rows. Numbers are sorted in descending order, strings in ascending order. None: worst
                first.
            row_limit: number of rows; -1: all.

        Raises:
            op_tools.Error: the rows have no such field.
        """
        words: dict[str, str] = {Verdict.AGREES: "", Verdict.DIFFERS: "WRONG", Verdict.NOT_JUDGED: "?"}
        columns = [
            Shown[ModuleRow]("module", lambda row: (row.module or "(model)") + (f" #{row.call}" if row.call else "")),
            worded("class", "kind"),
            worded("what", "what"),
            Shown[ModuleRow](
                "", lambda row: {"born": "BORN HERE", "carried": "carried"}.get(row.origin, words[row.verdict])
            ),
            Shown[ModuleRow]("of limit", lambda row: f"{row.share:.3g}", is_number=True),
            Shown[ModuleRow]("max abs", lambda row: f"{row.max_abs:.3g}", is_number=True),
            Shown[ModuleRow]("rmse", lambda row: f"{row.rmse:.3g}", is_number=True),
            Shown[ModuleRow]("cosine", lambda row: f"{row.cosine:.6f}", is_number=True),
        ]
        rows = sorted_rows(self.rows, sort_by) if sort_by else self.worst()
        lines = [text_table(columns, rows, row_limit)]
        if self.first is None:
            lines.append(f"{len(rows)} results agree")
        else:
            first = self.first
            lines.append(f"first: {first.module or '(model)'} ({first.kind}), {first.what}: {first.reason}")
        return "\n".join([*lines, *self.notes])


@dataclass
class _Sides:
    """The runs of a comparison, call by call of the same module."""

    judged: ModuleRun
    reference: ModuleRun  # in the judged side's dtypes, on the CPU where the judged run is not
    golden: ModuleRun | None  # in float64
    noisy: Callable[[int], ModuleRun]  # in float64, from inputs and parameters changed by less than their rounding
    method: str
    nan_equal: bool
    reduced: int  # about how many products go into an element

    def __post_init__(self) -> None:
        self._calls: dict[int, dict[tuple[str, int], ModuleCall]] = {}

    def _call_of(self, run: ModuleRun, call: ModuleCall) -> ModuleCall | None:
        known = self._calls.setdefault(id(run), {(one.path, one.number): one for one in run.calls})
        return known.get((call.path, call.number))

    def judge(self, find: Callable[[ModuleRun], Tensors | None], place: str, many: int = 1) -> dict[str, Any]:
        """The verdict about a tensor.

        Args:
            find: the tensors of a run that contain it.
            place: which of them.
            many: by how much the number of terms in a sum is larger than the model's own.
        """
        result = (find(self.judged) or {}).get(place)
        reference = (find(self.reference) or {}).get(place)
        if result is None or reference is None:
            missing = "the judged side" if result is None else "the other side"
            return {"verdict": Verdict.DIFFERS, "explained": f"{missing} has no such tensor"}
        golden = self.golden
        return judge_tensors(
            result,
            reference,
            golden=None if golden is None else lambda: (find(golden) or {}).get(place),
            perturbed=None if golden is None else lambda sample, _: (find(self.noisy(sample)) or {}).get(place),
            method=self.method,
            nan_equal=self.nan_equal,
            reduced=max(1, self.reduced * many),
        )

    def judge_call(self, call: ModuleCall, which: str) -> dict[str, dict[str, Any]]:
        """Rows by place, of a kind of a call's tensors."""

        def find(run: ModuleRun) -> Tensors | None:
            partner = self._call_of(run, call)
            return None if partner is None else getattr(partner, which)

        batch = 1
        if which.startswith("grad"):
            batch = max(
                [tensor.numel() // max(1, tensor.shape[-1]) for tensor in call.outputs.values() if tensor.dim()] or [1]
            )
        places = dict.fromkeys([*(find(self.reference) or {}), *getattr(call, which)])
        return {place: self.judge(find, place, batch) for place in places}


def _fails(rows: dict[str, dict[str, Any]]) -> bool:
    return any(row["verdict"] == Verdict.DIFFERS for row in rows.values())


@dataclass
class _Judged:
    """The judged tensors of a call of a module."""

    call: ModuleCall
    inputs: dict[str, dict[str, Any]]
    outputs: dict[str, dict[str, Any]]
    grad_outputs: dict[str, dict[str, Any]]
    grad_inputs: dict[str, dict[str, Any]]
    parameters: dict[str, dict[str, Any]] = field(default_factory=dict)  # of the module itself
    forward: str = ""  # where a wrong output comes from: "born", "carried"
    backward: str = ""


def _find_origins(judged: list[_Judged]) -> None:
    """Inner modules first: a difference that is born in a part of a module is carried to the module's own output."""
    inner_forward: set[int] = set()  # calls inside of which an error is born
    inner_backward: set[int] = set()

    def tell_those_round(call: ModuleCall, to: set[int]) -> None:
        round_it = call.inside
        while round_it is not None:
            to.add(id(round_it))
            round_it = round_it.inside

    for judgement in reversed(judged):
        wrong_in = _fails(judgement.inputs)
        if _fails(judgement.outputs):
            judgement.forward = "carried" if wrong_in or id(judgement.call) in inner_forward else "born"
            if judgement.forward == "born":
                tell_those_round(judgement.call, inner_forward)
        if _fails(judgement.grad_inputs) or _fails(judgement.parameters):
            came_wrong = wrong_in or _fails(judgement.outputs) or _fails(judgement.grad_outputs)
            judgement.backward = "carried" if came_wrong or id(judgement.call) in inner_backward else "born"
            if judgement.backward == "born":
                tell_those_round(judgement.call, inner_backward)


def _what(kind: str, place: str) -> str:
    """ "output [1]", "input grad" (of the first positional input), "input grad mask"."""
    if kind == "output":
        return f"output {place}".rstrip()
    place = place.removeprefix("[1]").strip("[]'\"") if place.startswith("[1]") else place.removeprefix("[0]")
    return f"input grad {'' if place == '[0]' else place}".rstrip()


def _module_row(call: ModuleCall, what: str, phase: str, origin: str, judged: dict[str, Any]) -> ModuleRow:
    fails = judged["verdict"] == Verdict.DIFFERS
    return ModuleRow(
        module=call.path,
        kind=call.kind,
        call=call.number,
        what=what,
        phase=phase,
        verdict=judged["verdict"],
        origin=origin if fails else "",
        share=judged.get("share", float("inf") if fails else 0.0),
        max_abs=judged.get("max_abs", float("nan") if fails else 0.0),
        max_rel=judged.get("max_rel", float("nan") if fails else 0.0),
        rmse=judged.get("rmse", float("nan") if fails else 0.0),
        cosine=judged.get("cosine", float("nan") if fails else 1.0),
        max_ulp=judged.get("max_ulp", float("nan") if fails else 0.0),
        dtype=str(judged.get("dtype", "")).removeprefix("torch."),
        shape=list(judged.get("shape", [])),
        reason=judged.get("explained") or judged.get("reason", ""),
    )


def _rows_in_order(judged: list[_Judged]) -> Iterator[ModuleRow]:
    """As the model computes: outputs as the modules ended, then gradients the other way round."""
    ended: list[_Judged] = []
    waiting: list[_Judged] = []
    for judgement in judged:  # a call has ended before the next call that is not inside it begins
        while waiting and judgement.call.inside is not waiting[-1].call:
            ended.append(waiting.pop())
        waiting.append(judgement)
    ended += reversed(waiting)
    for judgement in ended:
        for place, row in judgement.outputs.items():
            yield _module_row(judgement.call, _what("output", place), "forward", judgement.forward, row)
    for judgement in reversed(ended):
        for place, row in judgement.grad_inputs.items():
            yield _module_row(judgement.call, _what("input grad", place), "backward", judgement.backward, row)
        for name, row in judgement.parameters.items():
            yield _module_row(judgement.call, f"{name} grad", "backward", judgement.backward, row)


def _own_parameters(path: str, names: Iterable[str]) -> list[str]:
    prefix = f"{path}." if path else ""
    return [name for name in names if name.startswith(prefix) and "." not in name[len(prefix) :]]


def _judged_rows(sides: _Sides) -> list[ModuleRow]:
    judged = []
    last = {call.path: call for call in sides.judged.calls}
    for call in sides.judged.calls:
        inputs, outputs = sides.judge_call(call, "inputs"), sides.judge_call(call, "outputs")
        judgement = _Judged(
            call, inputs, outputs, sides.judge_call(call, "grad_outputs"), sides.judge_call(call, "grad_inputs")
        )
        if call is last[call.path]:  # a parameter's gradient is of all calls together
            names = {**sides.reference.parameter_grads, **sides.judged.parameter_grads}
            batch = max(
                [tensor.numel() // max(1, tensor.shape[-1]) for tensor in call.outputs.values() if tensor.dim()] or [1]
            )
            for name in _own_parameters(call.path, names):
                short = name.rpartition(".")[2]
                judgement.parameters[short] = sides.judge(lambda run: run.parameter_grads, name, batch)
        judged.append(judgement)
    _find_origins(judged)
    return list(_rows_in_order(judged))


def _differing_parameters(model: torch.nn.Module, other: torch.nn.Module) -> list[str]:
    ours, theirs = ({without_wrapper(name): one for name, one in side.named_parameters()} for side in (model, other))
    notes = []
    lacking = sorted(ours.keys() ^ theirs.keys())
    if lacking:
        notes.append(f"parameters of only one model: {', '.join(lacking[:5])}{' ...' if len(lacking) > 5 else ''}")
    different = []
    for name in ours.keys() & theirs.keys():
        left, right = (tensor.detach().cpu() for tensor in (ours[name], theirs[name]))
        if left.shape != right.shape or not torch.equal(left.to(right.dtype), right):
            different.append(name)
    if different:
        different.sort()
        notes.append(f"parameters with other values: {', '.join(different[:5])}{' ...' if len(different) > 5 else ''}")
    return notes


def _fan_in(model: torch.nn.Module) -> int:
    """How many products go into an element, at most: of the weights."""
    return max([tensor[0].numel() for tensor in model.parameters() if tensor.dim() > 1 and tensor.numel()] or [1])


def _args_and_kwargs(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example, dict):
        return (), example
    return (tuple(example) if isinstance(example, (tuple, list)) else (example,)), {}


def _changed_a_little(model: torch.nn.Module, inputs: Any, dtype: torch.dtype, sample: int) -> Any:
    """Parameters and inputs in float64, changed by less than the rounding of `dtype`."""
    generator = torch.Generator().manual_seed(1000 + sample)
    unit = torch.finfo(dtype).eps / 4

    def change(tensor: torch.Tensor) -> torch.Tensor:
        factor = 1 + unit * (2 * torch.rand(tensor.shape, dtype=torch.float64, generator=generator) - 1)
        return tensor.detach() * factor.to(tensor.dtype)

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.copy_(change(parameter))

    def moved(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
            return leaf
        return change(leaf).requires_grad_(leaf.requires_grad)

    return torch.utils._pytree.tree_map(moved, inputs)


@dataclass(frozen=True)
class _Runner:
    """Runs models on the same inputs, all in the same way."""

    inputs: Any
    modules: str  # only these, as a filter list
    loss: Callable[[Any], torch.Tensor] | None
    gradients: bool
    seed: int

    def run(self, model: torch.nn.Module, dtype: Callable[[torch.dtype], torch.dtype]) -> ModuleRun:
        """Runs a model where it is; `dtype`: that of an input, by its own dtype."""
        device = model_device(model)
        return self._run(model, inputs_for(self.inputs, device, dtype), device.type != "cpu")

    def in_float64(
        self, model: torch.nn.Module, change: Callable[[torch.nn.Module, Any], Any] = lambda _, values: values
    ) -> ModuleRun:
        """Runs a copy of a model in float64 on the CPU; `change`: of its parameters and inputs before."""
        cpu = torch.device("cpu")
        copy = copied(model, cpu, torch.float64)
        return self._run(copy, change(copy, inputs_for(self.inputs, cpu, _float64)), False)

    def _run(self, model: torch.nn.Module, values: Any, cpu_numbers: bool) -> ModuleRun:
        return run_model(
            model,
            values,
            wanted=lambda path: admits_module(f"{type(model).__name__}.{path}".rstrip("."), self.modules),
            gradients=self.gradients,
            loss=self.loss,
            seed=self.seed,
            cpu_numbers=cpu_numbers,  # random numbers are the CPU's on all sides
        )


def _float64(was: torch.dtype) -> torch.dtype:
    return torch.float64 if was.is_floating_point else torch.complex128 if was.is_complex else was


def _differing_runs(run_a: ModuleRun, run_b: ModuleRun, gradients: bool) -> list[str]:
    """In words: gradients that a side does not have, modules that ran on a single side."""
    notes = [f"no gradients: {one.no_gradients}" for one in (run_a, run_b) if gradients and one.no_gradients]
    missing = {call.path for call in run_a.calls} ^ {call.path for call in run_b.calls}
    return notes + ([f"modules that ran on one side only: {', '.join(sorted(missing))}"] if missing else [])


def _runs(
    runner: _Runner, model_a: torch.nn.Module, other: torch.nn.Module, method: str, golden: bool, nan_equal: bool
) -> tuple[_Sides, list[str]]:
    """All runs that a comparison needs, and notes on them."""
    dtype_a, dtype_b = float_dtype_of(model_a), float_dtype_of(other)

    def cast(to: torch.dtype | None) -> Callable[[torch.dtype], torch.dtype]:
        return lambda was: to if to is not None and was == dtype_a else was

    notes = []
    golden_run = None
    if golden and method == "relative":
        try:
            golden_run = runner.in_float64(model_a)
        except Exception as error:  # the model's own code may not be made for float64
            notes.append(f"no float64 run ({type(error).__name__}: {error}): judged by the other side alone")
    reference = run_a = runner.run(model_a, cast(None))
    if dtype_a != dtype_b:
        reference = runner.run(copied(model_a, torch.device("cpu"), dtype_b), cast(dtype_b))
    run_b = runner.run(other, cast(dtype_b))

    @functools.cache
    def noise(sample: int) -> ModuleRun:
        unit = dtype_b or torch.float32
        return runner.in_float64(model_a, lambda model, values: _changed_a_little(model, values, unit, sample))

    notes += _differing_runs(run_a, run_b, runner.gradients)
    return _Sides(run_b, reference, golden_run, noise, method, nan_equal, _fan_in(model_a)), notes


def compare_modules(
    model_a: torch.nn.Module,
    model_b: torch.nn.Module | None = None,
    inputs: Any = (),
    *,
    on_device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    gradients: bool = True,
    modules: Names = None,
    method: str = "relative",
    golden: bool = True,
    nan_equal: bool = True,
    seed: int = 0,
    files: bool = True,
    output_dir: str | os.PathLike[str] | None = None,
) -> ModuleComparison:
    """Runs two versions of a model on the same inputs and compares the results of each module, forward and backward.

    Both run once, with the same random numbers, in their own mode (training or evaluation). Parameters, gradients,
    buffers and random states are restored. A wrong result is *born* in its module if the module's inputs agree, and
    *carried* otherwise. Limits are those of OpAutoCompare (docs/autocompare.md): a multiple of the other side's own
    error against float64, plus units of the dtype.

    Args:
        model_a: the side that is taken as right. If only model_b is on the CPU, the sides are exchanged.
        model_b: the side that is checked; its modules have the same names. None: a copy of model_a, made with on_device
            and dtype.
        inputs: a tensor, a tuple of positional arguments or a dict of keyword arguments; on any device.
        on_device: device of the copy.
        dtype: dtype of the copy's floating-point parameters and inputs. A model in another dtype than model_a's is
            compared with the CPU's results in that dtype.
        loss: computes a scalar tensor from the model's output. None: the sum of all outputs times fixed random numbers.
        gradients: compare gradients of inputs and parameters too.
        modules: only these, by path, as a filter list ("layer3, .*.attention"). None: all.
        method: "relative", "allclose", "bitwise", "ulp", "msprobe-quick" or "msprobe-absolute", as for OpAutoCompare.
        golden: also run a copy in float64 on the CPU, which separates wrong modules from rounding.
        nan_equal: NaN equals NaN.
        seed: seed of all random numbers.
        files: write the rows to modules.jsonl in a folder op_compare_modules_result/<rank>/<time>, for `op-tools report`.
        output_dir: the folder in which that folder is made. None: OP_TOOLS_OUTPUT_DIR, else the working directory.

    Returns:
        a row per module, call and tensor, in the order of the computation.

    Raises:
        op_tools.Error: neither or both of model_b and on_device= or dtype= are given, or a model cannot be copied.
    """
    wants_copy = on_device is not None or dtype is not None
    if (model_b is None) is not wants_copy:
        raise Error("compare_modules: give either model_b, or on_device= or dtype= for a copy of model_a")
    other = model_b if model_b is not None else copied(model_a, on_device or model_device(model_a), dtype)
    if model_device(model_a).type != "cpu" and model_device(other).type == "cpu":
        model_a, other = other, model_a
    notes = _differing_parameters(model_a, other)
    runner = _Runner(_args_and_kwargs(inputs), joined(modules) or "", loss, gradients, seed)
    sides, of_runs = _runs(runner, model_a, other, method, golden, nan_equal)
    result = ModuleComparison(_judged_rows(sides), list(dict.fromkeys([*notes, *of_runs])))
    return _written(result, output_dir) if files else result


def _written(result: ModuleComparison, output_dir: str | os.PathLike[str] | None) -> ModuleComparison:
    """The result with its folder; without, where it cannot be written."""
    try:
        root = claim_folder(output_dir, FOLDER)
        unjudged = sum(row.verdict == Verdict.NOT_JUDGED for row in result.rows)
        few = (
            [f"{unjudged} of {len(result.rows)} results have no verdict"]
            if result.verdict is Verdict.NOT_JUDGED
            else []
        )
        write_rows(root / FILE, result.rows, {"verdict": result.verdict, "unseen": few, "notes": result.notes})
    except Error as error:
        log_warn(f"compare_modules: {error}")
        return result
    return replace(result, root=str(root))
