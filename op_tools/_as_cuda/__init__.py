"""Runs programs that name CUDA on another accelerator. op_tools.as_cuda is the public module; importing this package
changes nothing."""
