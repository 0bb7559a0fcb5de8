"""Runs programs that name CUDA on another accelerator. op_tools.as_cuda is the public module; importing this package
changes nothing."""

OTHER_ACCELERATORS = ("npu", "mlu", "musa", "xpu")
"""Names that programs use for a device as others use "cuda"."""
