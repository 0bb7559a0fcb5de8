"""The torch-level tools' mode under torch.compile.

Calls come to the mode in C; torch.compile, which cannot look into that, finds this class's function in its place. Where
it may break its graph it does so at each call, which then comes to the tools. Where it may not, it goes on as if there
were no tool, and the tools see the calls of the compiled code.
"""

from __future__ import annotations

from typing import Any

import torch


def _stays_whole() -> bool:
    """Whether the function that is being compiled must stay one graph. Asked while torch.compile traces: the answer is part of its code."""
    translator = torch._dynamo.symbolic_convert.InstructionTranslator.current_tx()
    # fullgraph=True, as torch.cond and flex_attention ask for it; the other since torch 2.9.
    if translator.one_graph or getattr(translator, "error_on_graph_break", False):
        return True
    # Code of a functorch transform that is left in the middle cannot be compiled any more.
    return torch._C._functorch.peek_interpreter_stack() is not None


_stays_whole._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as torch.compiler.assume_constant_result does


class TorchFunctionMode(torch.overrides.TorchFunctionMode):
    """The mode of the torch-level tools; its calls come to the extension."""

    # (self, func, types, args, kwargs); the torch.compile of 2.11 leaves self out.
    def __torch_function__(*call: Any) -> Any:
        """For torch.compile alone."""
        func, _, args, kwargs = call[-4:]
        if not _stays_whole():
            # The break belongs to the caller: a break in here would be reached again in the code after it, without end. A
            # torch that cannot break inside a called function (before 2.10) has nothing to disable.
            if hasattr(torch._dynamo, "disable_nested_graph_breaks"):
                with torch._dynamo.disable_nested_graph_breaks():
                    torch._dynamo.graph_break()
            else:
                torch._dynamo.graph_break()
        return func(*args, **(kwargs or {}))
