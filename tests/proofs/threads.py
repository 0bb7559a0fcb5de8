"""Threads that enter and leave scopes of all kinds while others run operators: results stay, and nothing is left behind.

Every thread runs the same small step and compares each result with the earlier result. Half of them enter and leave
scopes at both levels all the time, nested and interleaved, captures among them; the other half have none.

    threads.py [--threads 32] [--seconds 30]
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import threading
import time
from typing import Any

import torch
import torch.nn.functional as F
from _program import parser, quiet

import op_tools


class Counting(op_tools.Hook):
    gradients = True

    def __init__(self) -> None:
        self.names: set[str] = set()

    def before(self, call: Any) -> object:
        self.names.add(call.name)
        return call.args

    def after(self, call: Any, state: object) -> None:
        call.result  # noqa: B018


def step() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.linspace(-1, 1, 48).reshape(6, 8).requires_grad_()
    w = torch.linspace(0, 1, 32).reshape(4, 8)
    y = F.softmax(F.linear(x, w).tanh(), -1)
    y[:, 1:].square().sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad


class Run:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.expected = step()
        self.stop = threading.Event()
        self.failures: list[str] = []
        self.steps = self.scopes = self.captured = 0
        self.lock = threading.Lock()

    def check(self) -> None:
        for result, other in zip(step(), self.expected, strict=True):
            if not torch.equal(result, other):
                raise AssertionError("a step gave another result")
        with self.lock:
            self.steps += 1

    def without_scopes(self, _: int) -> None:
        while not self.stop.is_set():
            self.check()

    def with_scopes(self, number: int) -> None:
        chance = random.Random(number)
        while not self.stop.is_set():
            tools = [self.make(chance) for _ in range(chance.randint(1, 3))]
            for tool in tools:
                tool.start()
                self.check()
            chance.shuffle(tools)  # left in any order
            for tool in tools:
                self.check()
                tool.stop()
                if tool._scope.hook_failures:
                    raise AssertionError("a hook failed")
                if isinstance(tool, op_tools.OpCapture):
                    self.saw_capture(tool)
            with self.lock:
                self.scopes += len(tools)

    def make(self, chance: random.Random) -> Any:
        level = chance.choice(["torch", "aten"])
        ops = chance.choice([None, None, ".*linear|.*softmax.*", "aten::(mul|tanh).*,torch.Tensor.tanh"])
        if chance.random() < 0.3:
            return op_tools.OpCapture(level=level, ops=ops, format="container", output_dir=self.folder)
        return op_tools.HookScope(
            Counting(), level=level, ops=ops, all_threads=level == "aten" and chance.random() < 0.2
        )

    def saw_capture(self, tool: op_tools.OpCapture) -> None:
        result = tool.result()
        if result.failure or result.lost:
            raise AssertionError(result.failure)
        with self.lock:
            self.captured += sum(row.calls for row in result.rows)
        if result.root:
            shutil.rmtree(result.root)

    def body(self, work: Any, number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            self.failures.append(f"thread {number}: {type(error).__name__}: {error}")
            self.stop.set()


def main() -> int:
    command_line = parser(__doc__)
    command_line.add_argument("--threads", type=int, default=32, metavar="N")
    command_line.add_argument("--seconds", type=float, default=30, metavar="S")
    options = command_line.parse_args()
    quiet()
    folder = tempfile.mkdtemp(prefix="threads-")
    run = Run(folder)
    threads = [
        threading.Thread(target=run.body, args=(run.with_scopes if number % 2 else run.without_scopes, number))
        for number in range(options.threads)
    ]
    for thread in threads:
        thread.start()
    run.stop.wait(options.seconds)
    run.stop.set()
    deadline = time.monotonic() + 300
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        run.failures.append("a thread did not come to its end")
    entries = op_tools._C.kernel_entries()
    step()
    if op_tools._C.kernel_entries() != entries or torch.overrides._len_torch_function_stack():
        run.failures.append("something is still on after all scopes were left")
    shutil.rmtree(folder)
    print(
        f"{options.threads} threads, {run.steps} steps with equal results, {run.scopes} scopes entered and left, "
        f"{run.captured} calls captured"
    )
    for failure in run.failures:
        print(failure)
    sys.stdout.flush()
    if run.failures:
        os._exit(1)  # a thread may hang
    return 0


if __name__ == "__main__":
    sys.exit(main())
