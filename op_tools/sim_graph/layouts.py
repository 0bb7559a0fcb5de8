"""Layout choice: convolutions of images work on channels-last memory, and so do neighbours that work element by element."""

from __future__ import annotations

from .fusions import bypass
from .steps import Name, Program, Step

IMAGES = "image_convolution"
"""The kernel of convolutions whose results are promised to be contiguous, with sizes that are known."""
_UNARY = ("relu", "sigmoid", "tanh", "silu", "gelu", "exp", "neg", "abs")


def choose(program: Program) -> None:
    """Puts conversions around convolutions of images, and takes out those that another takes back."""
    for step in [step for step in program.steps if step.kernel == IMAGES]:
        _around(program, step)
    for step in list(program.steps):
        _cancelled(program, step)


def _around(program: Program, step: Step) -> None:
    place = program.steps.index(step)
    before = [
        Step(f"{step.result}_{part}", "to_channels_last", (step.args[at],)) for at, part in enumerate(("x", "weight"))
    ]
    result, step.result = step.result, f"{step.result}_nhwc"
    step.args = (*(Name(conversion.result) for conversion in before), *step.args[2:])
    program.steps[place : place + 1] = [*before, step, Step(result, "planar", (Name(step.result),))]


def _cancelled(program: Program, step: Step) -> None:
    """A conversion of a `planar` result, or a step element by element behind it, reads the memory before it."""
    maker = next((other for other in program.steps if step.args[:1] == (Name(other.result),)), None)
    if maker is None or maker.kernel != "planar":
        return
    if step.kernel == "to_channels_last":
        bypass(program, step, maker.args[0])
    elif step.kernel in _UNARY and len(program.readers(maker.result)) == 1 and not program.is_returned(maker.result):
        result, step.result = step.result, f"{step.result}_nhwc"
        step.args = (*maker.args, *step.args[1:])
        program.steps.insert(program.steps.index(step) + 1, Step(result, "planar", (Name(step.result),)))
        program.steps.remove(maker)
