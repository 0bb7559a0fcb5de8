"""A user's script as a type checker sees it; checked by test_declarations.py, never run."""

from __future__ import annotations

from pathlib import Path

import torch

import op_tools


class Counting(op_tools.Hook):
    def __init__(self) -> None:
        self.calls = 0

    def after(self, call: op_tools.Call, state: object) -> None:
        self.calls += 1


def captured(folder: Path) -> list[op_tools.CaptureRow]:
    with op_tools.OpCapture(
        ops=["torch.add", "torch.mm"], output_dir=folder, steps=range(3), format="container"
    ) as tool:
        torch.add(torch.ones(2), 1)
        tool.step()
    return tool.result().rows


def wrong(model: torch.nn.Module, x: torch.Tensor) -> list[str]:
    with op_tools.OpAutoCompare(method="ulp", async_=True, workers=3) as compare:
        model(x)
    return [op.reason for op in compare.result().ops if op.failed]


@op_tools.OpTimeMeasure(mode="event", schedule=torch.profiler.schedule(wait=1, warmup=1, active=2))
def step(x: torch.Tensor) -> torch.Tensor:
    return x.exp()


def everything(x: torch.Tensor) -> str:
    hook = Counting()
    cast = op_tools.OpDtypeCast(cast={torch.bfloat16: torch.float32}).start()
    with op_tools.HookScope(hook, level="aten") as scope, op_tools.OpOverflowCheck(allow=".*mask.*") as check:
        result = step(x)
    cast.stop()
    with op_tools.OpObserve(detail=2) as observe, op_tools.apply_feature("torch.mm", "fallback", lambda a, b: a.is_cpu):
        torch.mm(result, result)
    shapes = [tensor.shape for row in observe.result().rows for tensor in row.inputs]
    times: list[float] = [row.total_ms for row in op_tools.OpTimeMeasure().result().rows]
    return f"{hook.calls} {scope.calls_seen} {check.result().ok} {shapes} {times}"


def slowest() -> str:
    with op_tools.OpTimeMeasure() as time:
        torch.mm(torch.ones(2, 2), torch.ones(2, 2))
    result: op_tools.TimeResult = time.result()
    return result.table(sort_by="total_ms", row_limit=3)


def verdicts() -> list[str]:
    with op_tools.OpAutoCompare() as compare:
        torch.mm(torch.ones(2, 2), torch.ones(2, 2))
    return [row.verdict for row in compare.result().rows if row.max_abs is not None and row.max_abs > 0]


op_tools.OpCapture(ops=3)  # type: ignore[arg-type]
op_tools.OpCapture(output_dir=3)  # type: ignore[arg-type]
op_tools.OpCapture(opps="torch.add")  # type: ignore[call-arg]
op_tools.OpCapture(max_calls="three")  # type: ignore[arg-type]
op_tools.OpCapture(format="tar")  # type: ignore[arg-type]
op_tools.OpTimeMeasure(mode="fast")  # type: ignore[arg-type]
