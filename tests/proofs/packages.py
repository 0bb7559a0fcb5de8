"""Packages of AOTInductor against the programs of torch.export that they were made of: the small models of compiled_models.py.

    ./dev prove packages [--names REGEX]

Each model is exported, compiled to a package, loaded, and judged by op_tools.compare_package: a right package agrees. The same package
against the program with other weights, and with an operator exchanged, is wrong; one whose program changes a buffer is refused. A
package computes the same as without the judge, bit for bit. g++ compiles for half a minute each.
"""

from __future__ import annotations

import copy
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from _program import parser, quiet
from _small_models import SMALL
from compiled_models import forms
from torch.export import ExportedProgram

import op_tools

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "python"))

from models import same_bits  # noqa: E402

_NEAR = {
    torch.ops.aten.relu.default: torch.ops.aten.tanh.default,
    torch.ops.aten.gelu.default: torch.ops.aten.silu.default,
    torch.ops.aten.silu.default: torch.ops.aten.gelu.default,
    torch.ops.aten.sum.dim_IntList: torch.ops.aten.mean.dim,
}


def with_other_operator(program: ExportedProgram) -> ExportedProgram:
    """As if the compiler had taken an operator for another."""
    changed = copy.deepcopy(program)
    node = next(node for node in changed.graph.nodes if node.target in _NEAR)
    node.target = _NEAR[node.target]
    changed.graph_module.recompile()
    return changed


def with_other_weights(model: torch.nn.Module, args: tuple[Any, ...]) -> ExportedProgram:
    changed = copy.deepcopy(model)
    with torch.no_grad():
        next(changed.parameters()).mul_(1.001)
    return torch.export.export(changed, args)


def look_at(name: str) -> list[str]:
    """What is not as it should be."""
    torch.manual_seed(1)
    case = SMALL[name]()
    model, args = case.model.eval(), tuple(case.inputs(3).values())
    program = torch.export.export(model, args)
    with tempfile.TemporaryDirectory() as folder:
        path = torch._inductor.aoti_compile_and_package(program, package_path=f"{folder}/model.pt2")
        package = torch._inductor.aoti_load_package(path)
        alone = forms("package", package(*args))
        wrong = []
        try:
            result = op_tools.compare_package(package, program, output_dir=folder)
        except op_tools.Error as error:
            return (
                []
                if any(True for _ in model.buffers()) and "changes its buffers" in str(error)
                else [f"refused: {error}"]
            )
        print(f"{name}: {result.verdict.value}, {result.coverage.judged} results judged", flush=True)
        if result.verdict != "agrees":
            wrong += [
                f"{row.op}, {row.what}, {row.kind}: {row.reason} {row.number} > {row.limit}" for row in result.failures
            ]
            wrong += result.coverage.reasons()
        for fault, other in (("weights", with_other_weights(model, args)), ("operator", with_other_operator(program))):
            verdict = op_tools.compare_package(package, other, output_dir=folder).verdict
            wrong += [] if verdict == "differs" else [f"with other {fault}: {verdict.value}"]
        again = forms("package", package(*args))
        same = all(
            same_bits(y, again[key]) if isinstance(y, torch.Tensor) else y == again[key] for key, y in alone.items()
        )
        return wrong if same else [*wrong, "the package computes something else after it was judged"]


def main() -> int:
    command_line = parser(__doc__)
    command_line.add_argument("--names", default="", metavar="REGEX")
    options = command_line.parse_args()
    quiet("error")
    names = [name for name in SMALL if re.search(options.names, name)]
    wrong = {name: look_at(name) for name in names}
    for name, texts in wrong.items():
        for text in texts:
            print(f"{name}: {text}")
    print(f"{len(names)} packages, {sum(not texts for texts in wrong.values())} as they should be")
    return 1 if any(wrong.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
