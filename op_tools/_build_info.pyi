"""The versions that this build of op_tools was made with (cmake/_build_info.py.in)."""

VERSION: str
TORCH_VERSION: str
