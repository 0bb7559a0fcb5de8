"""Compiled models compute the same under the tools, and their operators are seen: inference and training of models of transformers,
timm and others, with static and with dynamic sizes.

    ./dev prove compiled_models [--names REGEX] [--modes inference training] [--sizes static dynamic] [--ways check nodes sim]
                                [--results FILE] [--write]
    ./dev prove compiled_models --backend openvino [--options JSON] [--names REGEX] [--results FILE]

check: compiled by inductor, under OpAutoCompare; the same program without it must have the same outputs, loss, gradients, weights,
buffers and random state, bit for bit, with as many graphs, recompiles and graph breaks, and each graph that is called wrong is wrong in
a script of torch and the compiler alone. sim: the same with sim_graph on the simulated device. nodes: operator by operator; the
program must compute what aot_eager computes, under OpAutoCompare and OpCapture at both levels: nothing is reported, each row has a
module or a line of the program, each captured call is replayed and agrees. --results keeps a line for each run, and goes on behind those that it has; --write puts the table
into docs/testing.md. A model whose library is missing is skipped, and the exit status is 1. --backend: `check` of another compiler, which
is given six small models in inference; the table also says how many operators torch's kernels ran, since compilers hand on in silence. A
model that the compiler does not take must raise the same, or end the process, with and without the tool.
"""

from __future__ import annotations

import importlib
import itertools
import json
import logging
import os
import re
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from _compiled_models import MODELS, OF_SIM, Case, meaning, precision
from _program import parser, quiet
from _small_models import SMALL
from _workers import Progress
from library_models import NotHereError, alarms_of, replayed
from op_db import trouble_of

import op_tools
from op_tools._base.captured_calls import call_folder
from op_tools._base.error_text import with_type
from op_tools._conformance.graph_judge import torch_calls
from op_tools._conformance.workers import work_through
from op_tools.repro import Plan, make

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "python"))

from models import same_bits  # noqa: E402

MODES, SIZES, WAYS = ("inference", "training"), ("static", "dynamic"), ("check", "nodes", "sim")
ROWS = {"static": (3, 3), "dynamic": (3, 5, 4)}
# Of a value inside of a graph: aot_eager has no such views where torch has them.
IS_VIEW = "view of result"
MAKERS = MODELS | SMALL
OF_DEVICE = ("op_tools.sim_device", "op_tools.sim_graph")
OF_MODEL = {"routed": ("transformers.integrations.moe",)}
"""Modules that register operators of a model."""
SECONDS = 1800  # for a model in a mode, all of its ways
MARKS = "<!-- compiled models: written by ./dev prove compiled_models --write -->", "<!-- end of compiled models -->"


class Compiler(NamedTuple):
    """Of torch.compile."""

    name: str
    options: dict[str, Any] | None = None


INDUCTOR, AOT_EAGER, SIM_GRAPH = map(Compiler, ("inductor", "aot_eager", "sim_graph"))


@dataclass
class Ran:
    """A program that ran: what it computed, and what torch.compile did."""

    seen: dict[str, Any]
    compiled: dict[str, int]


@dataclass
class Row:
    """A model in a mode with some sizes, compiled in a way."""

    model: str
    mode: str
    sizes: str
    way: str
    skipped: str = ""
    findings: list[str] = field(default_factory=list)
    confirmed: list[str] = field(default_factory=list)
    """Faults of the compiler that a script of torch and the compiler alone shows, too."""
    graphs: int = 0
    recompiles: int = 0
    breaks: int = 0
    verdict: str = ""
    rows: int = 0
    replayed: int = 0
    seconds: float = 0.0
    by_torch: tuple[int, int] = (0, 0)
    """With --backend: operators that torch's kernels ran in a call of the compiled model, and of the model itself."""
    by_inductor: bool = False
    """With --backend: inductor made kernels, in the compiler's place."""


def compile_counts() -> dict[str, int]:
    """The work of torch.compile since it was reset."""
    from torch._dynamo.utils import counters, get_compilation_metrics

    counts = {"graphs": counters["stats"]["unique_graphs"], "breaks": sum(counters["graph_break"].values())}
    counts["operators"] = counters["stats"]["calls_captured"]
    counts["recompiles"] = sum(bool(metrics.recompile_reason) for metrics in get_compilation_metrics())
    return counts


def start_counts() -> None:
    from torch._dynamo.utils import clear_compilation_metrics, counters

    torch._dynamo.reset()
    counters.clear()
    clear_compilation_metrics()


def forms(name: str, result: Any) -> dict[str, Any]:
    """What a program can see of a result's tensors."""
    seen: dict[str, Any] = {}
    for number, y in enumerate(torch.utils._pytree.tree_leaves(result)):
        if isinstance(y, torch.Tensor):
            seen[f"{name}, result {number}"] = y.detach().cpu().clone()
            seen[f"{name}, form of result {number}"] = f"{y.stride()} {y.requires_grad}"
            seen[f"{name}, {IS_VIEW} {number}"] = y._is_view()
    return seen


def tensors_of(result: Any) -> Any:
    """The results of a model of transformers without its cache, whose classes are no trees."""
    return {name: y for name, y in result.items() if name != "past_key_values"} if hasattr(result, "items") else result


def to_device(inputs: dict[str, torch.Tensor], device: str) -> dict[str, torch.Tensor]:
    return {name: value.to(device) for name, value in inputs.items()}


def run(name: str, mode: str, sizes: str, compiler: Compiler, tools: Iterable[Any] = (), device: str = "cpu") -> Ran:
    """Makes, compiles and runs a model; all but making it while the tools are on."""
    torch.manual_seed(1)
    case = MAKERS[name]()
    model = case.model.to(device)
    # With sizes that change: in half of the models as a user has it, in the other half from the first call on.
    dynamic = False if sizes == "static" else (None, True)[list(MAKERS).index(name) % 2]
    start_counts()
    torch.manual_seed(5)
    tools = list(tools)
    for tool in tools:
        tool.start()
    try:
        with precision(case):
            step = torch.compile(model, backend=compiler.name, options=compiler.options, dynamic=dynamic)
            work = trained if mode == "training" else inferred
            seen = work(case, step, ROWS[sizes], device, tools)
    finally:
        for tool in reversed(tools):
            tool.stop()
    seen |= {f"state {key}": value.detach().cpu().clone() for key, value in model.state_dict().items()}
    seen["random state"] = torch.get_rng_state()
    return Ran(seen, compile_counts())


def inferred(case: Case, step: Any, rows: tuple[int, ...], device: str, tools: list[Any]) -> dict[str, Any]:
    case.model.eval()
    seen: dict[str, Any] = {}
    for number, count in enumerate(rows):
        inputs = to_device(case.inputs(count), device)
        with torch.no_grad():
            seen |= forms(f"call {number}", tensors_of(case.infer(step, inputs)))
        for tool in tools:
            tool.step()
    return seen


def trained(case: Case, step: Any, rows: tuple[int, ...], device: str, tools: list[Any]) -> dict[str, Any]:
    case.model.train()
    method = torch.optim.SGD(case.model.parameters(), lr=0.05, momentum=0.9)
    seen: dict[str, Any] = {}
    for number, count in enumerate(rows):
        inputs = to_device(case.inputs(count), device)
        method.zero_grad()
        result = tensors_of(step(**inputs))
        loss = result["loss"] if isinstance(result, dict) else result[0]
        seen |= forms(f"step {number}", result)
        loss.backward()
        seen |= {
            f"step {number}, gradient of {key}": None if p.grad is None else p.grad.detach().cpu().clone()
            for key, p in case.model.named_parameters()
        }
        method.step()
        for tool in tools:
            tool.step()
    return seen


def changes(run: Ran, other: Ran) -> list[str]:
    """The differences of two runs."""

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            return same_bits(a, b)
        return bool(a == b)

    keys = run.seen | other.seen
    changed = [f"{key} changed" for key in keys if not same(run.seen.get(key, ""), other.seen.get(key, ""))]
    if run.compiled != other.compiled:
        changed.append(f"torch.compile: {run.compiled} without, {other.compiled} with it")
    return changed


def without_place(result: Any) -> list[str]:
    """Rows that name neither a module nor a line of the program."""
    return [
        f"{row.op}, {row.phase}: no place: module {row.module!r}, line {row.source!r}"
        for row in result.rows
        if not row.module and (not row.source or row.source.startswith("<") or "/torch/" in row.source)
    ]


def check(row: Row, compiler: Compiler, device: str = "cpu") -> None:
    """Under `check`, against the same compiled program without a tool."""
    program = (row.model, row.mode, row.sizes, compiler)
    folder = tempfile.mkdtemp()
    try:
        tool = op_tools.OpAutoCompare(output_dir=folder, compiled="check")
        try:
            plain = run(*program, device=device)
        except NotHereError:
            raise
        except Exception as error:
            raised, again = with_type(error), raised_by(*program, [tool], device)
            row.verdict = f"raises: {raised}"
            row.findings += [] if again == raised else [f"raises {raised} without, {again or 'nothing'} with it"]
            return
        row.graphs, row.recompiles, row.breaks = (plain.compiled[key] for key in ("graphs", "recompiles", "breaks"))
        watched = run(*program, [tool], device)
        changed = changes(plain, watched)
        if changed:  # torch traces some programs twice in a process that has not traced them before
            again = run(*program, device=device)
            if changes(plain, again) and changes(again, watched):
                row.skipped = "without a tool two runs differ"
                return
            changed = changes(again, watched)
        row.findings += [*changed[:3], *filter(None, [trouble_of(tool)])]
        result = tool.result()
        confirm(row, result, OF_DEVICE if device == "sim" else OF_MODEL.get(row.model, ()))
        row.verdict, row.rows = result.verdict.value, sum(one.op.startswith("torch.compile.") for one in result.rows)
        if row.verdict == "not judged":
            row.verdict += f": {'; '.join(result.coverage.reasons())}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def raised_by(*program: Any) -> str:
    """The error with which a program ends under tools; "": none."""
    try:
        run(*program)
    except Exception as error:
        return with_type(error)
    return ""


def confirm(row: Row, result: op_tools.CompareResult, imports: tuple[str, ...]) -> None:
    """Of each graph that is called wrong a script of torch and the compiler alone has to show it, in a fresh process."""
    wrong = {failed.op: failed for failed in result.failures}
    for op, failed in wrong.items():
        text = f"{op}, {failed.phase}, {failed.kind}: {failed.reason}"
        try:
            if not failed.saved:
                raise op_tools.Error("not saved")
            path = Path(call_folder(failed.saved)).with_name("repro.py")
            *_, script = make(call_folder(failed.saved), path, Plan("cpu", imports), 300, lambda _: None, runs=1)
            is_shown = script.reproduces
        except op_tools.Error as error:
            is_shown, text = False, f"{text}: {error}"
        if is_shown:
            row.confirmed.append(text)
        else:
            row.findings.append(f"not shown by torch alone: {text}")


def look_who_ran(row: Row, compiler: Compiler) -> None:
    """Counts the operators that torch's kernels run, where the compiler may have handed some on."""
    from torch._inductor import metrics

    torch._dynamo.reset()
    kernels = metrics.generated_kernel_count
    case = MAKERS[row.model]()
    case.model.eval()
    inputs = case.inputs(3)
    compiled = torch.compile(case.model, backend=compiler.name, options=compiler.options, dynamic=False)
    counted = []
    for step in (compiled, case.model):
        folder = tempfile.mkdtemp()
        try:
            with torch.no_grad(), op_tools.OpTimeMeasure(level="aten", compiled="as-is", output_dir=folder) as tool:
                case.infer(step, inputs)  # compiles
                before = torch_calls(tool)
                case.infer(step, inputs)
                counted.append(torch_calls(tool) - before)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    row.by_torch, row.by_inductor = (counted[0], counted[1]), metrics.generated_kernel_count > kernels


def nodes(row: Row) -> None:
    """Under `nodes`, against aot_eager."""
    plain = run(row.model, row.mode, row.sizes, AOT_EAGER)
    row.graphs, row.recompiles, row.breaks = (plain.compiled[key] for key in ("graphs", "recompiles", "breaks"))
    for level in ("torch", "aten"):
        for kind in (op_tools.OpAutoCompare, op_tools.OpCapture):
            folder = tempfile.mkdtemp()
            try:
                tool = kind(level=level, output_dir=folder, compiled="nodes")
                changed = changes(plain, run(row.model, row.mode, row.sizes, AOT_EAGER, [tool]))
                changed = [text for text in changed if IS_VIEW not in text]
                problems = [*changed[:3], *filter(None, [trouble_of(tool)]), *alarms_of(tool)]
                result = tool.result()
                if kind is op_tools.OpCapture:
                    calls, wrong = replayed(folder)
                    row.replayed += calls
                    problems += wrong[:3] if calls else ["no call was captured", *wrong]
                else:
                    row.verdict = result.verdict.value if row.verdict in ("", "agrees") else row.verdict
                    row.rows += len(result.rows)
                    problems += without_place(result)[:3]
                    problems += [] if "graphs" not in result.coverage.gaps() else result.coverage.reasons()
                row.findings += [f"{kind.__name__}, {level}: {text}" for text in problems]
            finally:
                shutil.rmtree(folder, ignore_errors=True)


def look_at(name: str, mode: str, sizes: str, way: str, compiler: Compiler) -> Row:
    began = time.monotonic()
    row = Row(name, mode, sizes, way)
    try:
        if way == "alone":
            run(name, mode, sizes, compiler)
        elif way == "check":
            check(row, compiler)
            if name in SMALL and not row.verdict.startswith("raises:"):
                look_who_ran(row, compiler)
        elif way == "sim":
            check(row, SIM_GRAPH, "sim")
        else:
            nodes(row)
    except NotHereError as error:
        row.skipped = str(error)
    except Exception as error:
        row.findings.append(f"raised {type(error).__name__}: {error}".splitlines()[0][:300])
    row.seconds = time.monotonic() - began
    return row


def start() -> None:
    warnings.simplefilter("ignore")
    os.environ["OP_CAPTURE_FORMAT"] = "container"
    quiet("error")
    torch._logging.set_logs(all=logging.ERROR)


def work(item: tuple[str, str, str, str, Compiler]) -> Row:
    if item[3] == "sim":  # in a process of its own: tools ask of a program that has a device that it uses it
        for module in OF_DEVICE:
            importlib.import_module(module)
    return look_at(*item)


def died_alone(item: tuple[Any, ...]) -> str:
    """How the process of a program without a tool ended; "": it did not."""
    alone = (*item[:3], "alone", *item[4:])
    ((_, _, trouble),) = work_through([alone], start, work, jobs=1, seconds=SECONDS)
    return str(trouble or "")


def table(rows: list[Row]) -> str:
    lines = [
        "| model | graphs, recompiles, breaks | check | nodes: rows, replayed | sim_graph |",
        "|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(row.model for row in rows):
        mine = {way: [row for row in rows if row.model == name and row.way == way and not row.skipped] for way in WAYS}
        said = {way: Counter(row.verdict.partition(":")[0] for row in ways) for way, ways in mine.items()}
        text = {way: ", ".join(f"{count} {word}" for word, count in said[way].items()) for way in WAYS}
        of_check = mine["check"] or mine["nodes"]
        counts = ", ".join(
            str(sum(getattr(row, key) for row in of_check)) for key in ("graphs", "recompiles", "breaks")
        )
        of_nodes = ", ".join(f"{sum(getattr(row, key) for row in mine['nodes']):,}" for key in ("rows", "replayed"))
        lines.append(f"| `{name}`: {meaning(MAKERS[name])} | {counts} | {text['check']} | {of_nodes} | {text['sim']} |")
    return "\n".join(lines)


def table_of_backend(rows: list[Row]) -> str:
    lines = [
        "| model | graphs | operators that torch's kernels ran | verdict | wrong, and shown by a script of torch and the compiler alone |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        by = f"{row.by_torch[0]} of {row.by_torch[1]}{', others by inductor' if row.by_inductor else ''}"
        text = "; ".join(text.partition(", ")[2] for text in row.confirmed)
        lines.append(f"| `{row.model}`: {meaning(MAKERS[row.model])} | {row.graphs} | {by} | {row.verdict} | {text} |")
    return "\n".join(lines)


def summary(rows: list[Row]) -> str:
    ran = [row for row in rows if not row.skipped]
    unchanged = sum(not any(" changed" in text or "torch.compile:" in text for text in row.findings) for row in ran)
    return (
        f"{len({row.model for row in ran})} models, {len(ran)} programs, {unchanged} unchanged bit for bit, with as many graphs, recompiles "
        f"and breaks as without a tool; {sum(bool(row.findings) for row in ran)} with a false report; "
        f"{sum(len(row.confirmed) for row in ran)} graphs called wrong, which a script of torch and the compiler alone shows, too; "
        f"{sum(row.rows for row in ran if row.way == 'nodes'):,} rows with a place, {sum(row.replayed for row in ran):,} calls replayed; "
        f"{len(rows) - len(ran)} programs skipped."
    )


def main() -> int:
    command_line = parser(__doc__)
    command_line.add_argument("--names", default="", metavar="REGEX")
    command_line.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    command_line.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    command_line.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    command_line.add_argument("--backend", default="", metavar="NAME")
    command_line.add_argument("--options", type=json.loads, metavar="JSON")
    command_line.add_argument("--results", type=Path, metavar="FILE")
    command_line.add_argument("--jobs", type=int, default=2, metavar="N")
    command_line.add_argument("--write", action="store_true")
    options = command_line.parse_args()
    if options.backend:
        options.modes, options.sizes, options.ways = MODES[:1], SIZES[:1], WAYS[:1]
    rows = []
    if options.results and options.results.exists():
        rows = [Row(**json.loads(line)) for line in options.results.read_text().splitlines()]
    done = {(row.model, row.mode, row.sizes, row.way) for row in rows}
    items = [
        (name, mode, sizes, way, Compiler(options.backend, options.options) if options.backend else INDUCTOR)
        for name in (SMALL if options.backend else MODELS)
        if re.search(options.names, name)
        for mode in options.modes
        for sizes in options.sizes
        for way in options.ways
        if (way != "sim" or name in OF_SIM) and (name, mode, sizes, way) not in done
    ]
    progress = Progress(len(items), "programs")
    runs = [work_through([item for item in items if (item[3] == "sim") == on_sim], start, work, jobs=options.jobs, seconds=SECONDS)
            for on_sim in (False, True)]  # fmt: skip
    for item, row, trouble in itertools.chain.from_iterable(runs):
        if row is None:
            row = Row(*item[:4], findings=[str(trouble)])
            if options.backend and str(trouble) == died_alone(item):
                row.verdict, row.findings = str(trouble), []
        rows.append(row)
        if options.results:
            with options.results.open("a") as file:
                file.write(json.dumps(asdict(row)) + "\n")
        place = f"{row.model}, {row.mode}, {row.sizes}, {row.way}"
        of_compiler = [f"shown by torch alone: {text}" for text in row.confirmed]
        for text in [*([f"skipped: {row.skipped}"] if row.skipped else []), *row.findings, *of_compiler]:
            print(f"{place}: {text}", flush=True)
        progress.step(place)
    text = f"{(table_of_backend if options.backend else table)(rows)}\n\n{summary(rows)}"
    print(text)
    if options.write:
        page = ROOT / "docs" / "testing.md"
        before, after = page.read_text().split(MARKS[0])[0], page.read_text().split(MARKS[1])[1]
        page.write_text(f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}")
    return 1 if any(row.findings or row.skipped for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
