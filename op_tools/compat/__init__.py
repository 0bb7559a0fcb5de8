"""Stand-ins for tools of others: programs that were written for them run with op_tools, and write the same files.

``from op_tools.compat import troubleshooter as ts`` and ``from op_tools.compat.pytorch15 import dumper``.
"""
