"""A hook of your own in Python: counts the operators of a training step and finds the largest output."""

from collections import Counter

import torch

import op_tools


class OperatorCounts(op_tools.Hook):
    def __init__(self) -> None:
        self.calls = Counter()
        self.largest = (0, "none")

    def after(self, call: op_tools.Call, state: object) -> None:  # noqa: ARG002
        self.calls[call.name] += 1
        if isinstance(call.result, torch.Tensor):
            self.largest = max(self.largest, (call.result.numel(), call.name))


def main() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    counts = OperatorCounts()
    with op_tools.HookScope(counts, level="aten"):
        torch.nn.functional.cross_entropy(net(torch.randn(64, 32)), torch.arange(64) % 10).backward()
    for name, count in counts.calls.most_common(5):
        print(f"{count:4}  {name}")
    print(f"largest output: {counts.largest[0]} elements, of {counts.largest[1]}")


if __name__ == "__main__":
    main()
