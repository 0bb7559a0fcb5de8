"""The package's places in the core and in torch: who answers what the core asks of Python, and where torch makes room."""

from __future__ import annotations

from .._base.core import (
    set_flop_counter,
    set_module_namer,
    set_name_adviser,
    set_outside_test,
    set_program_source,
    set_tensor_namer,
    set_torch_function_mode,
)
from . import higher_order, mode_stack, printing
from .compiled_mode import TorchFunctionMode
from .flops import count_flops
from .interrupts import is_from_outside
from .module_names import path_of
from .operator_names import advice
from .run_facts import named_tensors, program_facts


def take_places() -> None:
    """Once, when the package is imported: first the answers, then the mode of the torch level, then torch's own functions that
    call the core."""
    set_outside_test(is_from_outside)
    set_module_namer(path_of)
    set_tensor_namer(named_tensors)
    set_program_source(program_facts)
    set_flop_counter(count_flops)
    set_name_adviser(advice)
    set_torch_function_mode(TorchFunctionMode())
    higher_order.patch_torch()
    mode_stack.patch_torch()
    printing.patch_torch()
