"""A small graph compiler, as a vendor would write it, with faults to plant: backend="sim_graph" of torch.compile, on any device.

    import op_tools.sim_graph

    step = torch.compile(model, backend="sim_graph")
    with op_tools.sim_graph.plant("wrong fusion"):
        step(x)

aten graphs, forward and backward, become steps of its own kernels (conversions.py), neighbours are fused (fusions.py), convolutions of images
get channels-last memory (layouts.py), and the steps become calls of torch's operators on registers (lowering.py), a program that a single call
in C++ runs, on the simulated device in its queue. Graphs with the same calls share a program (compiler.py). An operator without a conversion
runs as torch's own kernel.
faults.py has the faults. docs/compiled.md describes it.
"""

from __future__ import annotations

from .compiler import compiled_programs, sim_graph
from .faults import FAULTS, Fault, plant

__all__ = ["FAULTS", "Fault", "compiled_programs", "plant", "sim_graph"]
