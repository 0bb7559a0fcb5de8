"""A script as a bug report: Markdown in the form that PyTorch asks for."""

from __future__ import annotations

import sys
from pathlib import Path

from ._literals import comment
from ._make import Made, shown_name
from ._saved import Saved
from ._trial import run

_LINES = 400


def _fenced(text: str, language: str = "") -> str:
    """A code block that nothing in the text can end."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}\n"


def issue_text(saved: Saved, repro: Made) -> str:
    """The report.

    Args:
        saved: the call.
        made: its script.
    """
    device = repro.script.plan.device
    environment = run([sys.executable, "-m", "torch.utils.collect_env"])
    side = f"It loads `{repro.side_path.name}`, attached.\n" if repro.side_path else ""
    lines = repro.script.text.splitlines()
    script = (
        "\n".join(lines)
        if len(lines) <= _LINES
        else "\n".join([*lines[:_LINES], "# ... cut; the whole file is attached"])
    )
    return "\n".join(
        [
            f"# {comment(shown_name(saved))} {'has other bits' if saved.variation else 'is wrong'} on {comment(device)}",
            "",
            "### 🐛 Describe the bug",
            "",
            *_says(saved, device),
            f"{comment(repro.finding)}.",
            side,
            f"It reproduces in {repro.reproduced} of 3 runs in fresh processes; exit status 1: {'other bits, 0: the same bits' if saved.variation else 'wrong, 0: right'}.",
            "",
            _fenced(script, "python"),
            "Its output:",
            "",
            _fenced(repro.output),
            "### Versions",
            "",
            _fenced(environment.out or "python -m torch.utils.collect_env gave nothing"),
        ]
    )


def _says(saved: Saved, device: str) -> list[str]:
    name = comment(shown_name(saved))
    if saved.variation:
        relation = comment(str(saved.variation.get("relation")))
        return [
            f"`{name}` gives other bits on `{comment(device)}` when it is run again; the relation: {relation}. The script below runs it "
            "twice, and compares what must be the same."
        ]
    return [
        f"`{name}` gives a wrong result on `{comment(device)}`. The script below runs it there, on the CPU and on the CPU in float64.",
        "The CPU's result agrees with float64; the device's does not.",
    ]


def write_issue(saved: Saved, repro: Made) -> Path:
    """Writes the report beside the script."""
    path = repro.path.with_suffix(".md")
    path.write_text(issue_text(saved, repro))
    return path
