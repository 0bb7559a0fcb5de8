"""A small graph compiler, as a vendor would write it, with faults to plant: backend="sim_graph" of torch.compile, on any device.

    import op_tools.sim_graph

    step = torch.compile(model, backend="sim_graph")
    with op_tools.sim_graph.plant("wrong fusion"):
        step(x)

aten graphs, forward and backward, become steps of its own kernels (conversions.py), neighbours are fused (fusions.py), convolutions of images
get channels-last memory (layouts.py), and the steps become the text of a function, which is kept for graphs with the same text (compiler.py). An operator without a conversion runs as torch's own kernel.
faults.py has the faults. docs/compiled.md describes it.
"""

from __future__ import annotations

from .compiler import compiled_texts, sim_graph
from .faults import FAULTS, Fault, plant

__all__ = ["FAULTS", "Fault", "compiled_texts", "plant", "sim_graph"]
