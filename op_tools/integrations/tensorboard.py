"""Results of tools in TensorBoard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._report.of_result import part_of_result
from .._report.part import Mark
from .._report.text import text_of_parts

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_MOST_SCALARS = 50  # operators
_CODE = "    "  # of Markdown: nothing in a line behind it is markup


def add_result(writer: SummaryWriter, result: Any, step: int = 0, tag: str = "op_tools") -> None:
    """Adds a result to a run: the numbers of its findings by mark, the worst of each operator that is wrong, the self time of
    operators (OpTimeMeasure), and the text of the report.

    writer = SummaryWriter(); add_result(writer, tool.result(), global_step)

    Args:
        writer: of torch.utils.tensorboard, which needs the package tensorboard.
        result: of any tool, `tool.result()`.
        step: the program's step, the x of all curves.
        tag: in front of all names.

    Raises:
        op_tools.Error: a file of the run is damaged.
    """
    part = part_of_result(result)
    place = f"{tag}/{part.tool}"
    for mark in (Mark.WRONG, Mark.NOT_JUDGED):
        count = sum(finding.count for finding in part.findings if finding.mark is mark)
        writer.add_scalar(f"{place}/{mark.value}", count, step)
    wrong = [finding for finding in part.findings if finding.mark is Mark.WRONG and finding.worst is not None]
    worst: dict[str, float] = {}
    for finding in wrong:
        worst[finding.op] = max(finding.worst or 0.0, worst.get(finding.op, 0.0))
    for op, value in list(worst.items())[:_MOST_SCALARS]:
        writer.add_scalar(f"{place}/worst/{op}", value, step)
    for op, value, _ in part.bars[:_MOST_SCALARS]:
        writer.add_scalar(f"{place}/{part.bars_title}/{op}", value, step)
    lines = text_of_parts([part]).splitlines()
    writer.add_text(place, "\n".join(f"{_CODE}{line}" for line in lines), step)
