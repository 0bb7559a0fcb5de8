"""From a compiled program with wrong results to the fused operators that make them, and a script for who made the compiler.

    ./dev demo --compiled

The compiler is a small one of ours (op_tools.sim_graph), with a wrong fusion planted. OpAutoCompare judges the compiled graph, then the
graph's operators without the compiler; op-tools repro cuts the graph to the nodes that still fail. The script of them has exit status 1 with
the faulty compiler, 0 with the right one.
"""

import sys

from _demo import output_folder, parser_with_output, run, story, title

FAULT = {"OP_TOOLS_SIM_GRAPH_FAULT": "wrong fusion"}
SCRIPT = """\
import torch
import op_tools.sim_graph  # a vendor's compiler registers itself

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.LayerNorm(8),
    torch.nn.Linear(8, 16),
    torch.nn.GELU(),
    torch.nn.Linear(16, 4),
)
step = torch.compile(model, backend="sim_graph")
step(torch.randn(32, 8)).square().mean().backward()
"""


def main() -> int:
    options = parser_with_output(__doc__).parse_args()
    output = output_folder(options, "compiled")
    program, script, results = output / "train.py", output / "repro.py", output / "results"
    program.write_text(SCRIPT)
    op_tools = [sys.executable, "-m", "op_tools"]
    judge = [*op_tools, "run", "--autocompare", "--fail-on-wrong", "--output-dir", str(results)]

    story(5, "a compiled program is wrong; from there to the fused operators")
    title("1. The program as it is: each compiled graph is a call, judged against the CPU and float64")
    print(SCRIPT)
    compiled = run([*judge, str(program)], FAULT)
    title("2. The operators of its graphs, without the compiler: they are right, so it is the compiler")
    nodes = run([*judge, "--compiled", "nodes", str(program)], FAULT)

    title("3. The smallest part of the graph that is still wrong, as a script of torch and the compiler")
    (graph,) = {file.parent for file in results.rglob("graph.json")}
    make = [*op_tools, "repro", str(graph), "--shrink", "--import", "op_tools.sim_graph", "-o", str(script)]
    statuses = [
        run(make, FAULT),
        run([sys.executable, str(script)], FAULT),
        run([sys.executable, str(script)], {}),
    ]
    text = script.read_text() if script.exists() else ""
    cut = "gelu" in text and "layer_norm" not in text
    print("the script has the fused operators alone" if cut else "the script has other operators")
    return 0 if (compiled, nodes, *statuses) == (1, 0, 0, 1, 0) and cut else 1


if __name__ == "__main__":
    sys.exit(main())
