"""Lets operators that take functions (torch.cond, flex_attention, a Function under functorch) pass the aten level's key.

torch dispatches them in Python, where a key without a kernel is an error: the interceptor's fallback for all operators of
the dispatcher is not used there. Tools see the operators that they call.
"""

from __future__ import annotations

import torch

from .._base.core import interceptor_key


def patch_torch() -> None:
    """For the operators that torch has, and for those to come."""
    key = torch._C._parse_dispatch_key(interceptor_key())
    assert key is not None
    # Those to come read this list when they are made.
    torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(key)
    for operator in torch._ops._higher_order_ops.values():
        operator.fallthrough(key)  # type: ignore[no-untyped-call]
