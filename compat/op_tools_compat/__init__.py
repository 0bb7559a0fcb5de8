"""Parts of op_tools that few users need: stand-ins for tools of others, which write the same files, .h5 files, and tables.

``from op_tools_compat import troubleshooter as ts``, ``from op_tools_compat.pytorch15 import dumper``,
``from op_tools_compat.arrays import convert``. op_tools finds the other parts by the entry points of pyproject.toml.
"""
