"""Are a program's results with tools on the same as without?"""

import torch
from models import same_bits
from torch.utils._pytree import tree_leaves

import op_tools
from op_tools._tools.tool_classes import tool_classes

LEVELS = ["torch", "aten"]


def assert_same(tree, other):
    tree, other = tree_leaves(tree), tree_leaves(other)
    assert len(tree) == len(other)
    for a, b in zip(tree, other, strict=True):
        assert type(a) is type(b)
        assert same_bits(a, b) if isinstance(a, torch.Tensor) else a == b


def all_tools(levels=LEVELS):
    """One of each tool that has to leave the program as it is, at these levels: all but the cast, which changes what runs."""
    tools = [kind(level=level) for name, kind in tool_classes().items() if name != "OpDtypeCast" for level in levels]
    return tools + [op_tools.HookScope(Looking(), level=level) for level in levels]


def run(program, tools):
    """The program's results while the tools are on; none of them failed."""
    for tool in tools:
        tool.start()
    try:
        torch.manual_seed(1)
        result = program()
    finally:
        for tool in tools:  # not the reverse order: scopes of several tools may overlap
            tool.stop()
    assert [type(tool).__name__ for tool in tools if tool._scope.hook_failures] == []
    ended = {type(tool).__name__: getattr(tool.result(), "failure", "") for tool in tools if hasattr(tool, "result")}
    assert not any(ended.values()), ended
    return result


class Looking(op_tools.Hook):
    gradients = True

    def before(self, call):
        return call.args, call.kwargs

    def after(self, call, state):
        call.result  # noqa: B018
