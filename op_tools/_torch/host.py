"""The package's places in the core and in torch: the answers to the core's questions, and torch's torch-function mode."""

from __future__ import annotations

from .._base.core import install_host, set_torch_function_mode
from .._base.own_command import op_tools_line, replay_line
from . import higher_order, mode_stack, printing
from .compiled_mode import TorchFunctionMode
from .flops import count_flops
from .interrupts import is_from_outside
from .module_names import path_of
from .operator_names import advice
from .run_facts import gathers_collectives, named_tensors, packs_saved_tensors, program_facts, program_start


def take_places() -> None:
    """Once, when the package is imported: first the answers, then the mode of the torch level, then torch's own functions that
    call the core."""
    install_host(
        is_from_outside=is_from_outside,
        module_path=path_of,
        named_tensors=named_tensors,
        program_facts=program_facts,
        program_start=program_start,
        count_flops=count_flops,
        advice=advice,
        gathers_collectives=gathers_collectives,
        packs_saved_tensors=packs_saved_tensors,
        op_tools_command=op_tools_line(),
        replay_command=replay_line(),
    )
    set_torch_function_mode(TorchFunctionMode())
    higher_order.patch_torch()
    mode_stack.patch_torch()
    printing.patch_torch()
