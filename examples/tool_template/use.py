"""Uses the tool from Python:  python use.py build/libop_toy.so"""

import sys

import torch

import op_tools

(OpToy,) = op_tools.load_tools(sys.argv[1])

with OpToy(ops="torch.add, torch.mul", min_calls=2) as tool:
    x = torch.ones(3)
    torch.add(x, x)
    torch.add(x, 1)
    torch.mul(x, 2)

print(tool.result().table())
