"""troubleshooter's api_dump: ``from op_tools_compat import troubleshooter as ts``, then ``ts.migrator.api_dump_init(net)``."""

from . import migrator

__all__ = ["migrator"]
