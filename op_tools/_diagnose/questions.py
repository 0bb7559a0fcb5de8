"""The questions, in the order in which an experienced engineer asks them."""

from __future__ import annotations

from collections.abc import Callable

from .first_run import ask_run
from .loss import TRIALS, ask_loss, no_bisection
from .operators import ask_graphs, ask_operators
from .reference import ask_reference, reference_losses
from .resources import MEMORY_STEPS, TIMED_STEPS, ask_memory, ask_time
from .session import COMPARED, RECORDED, SYNCHRONOUS, NotAsked, Question, Session


def _can_always_be_asked(_: Session) -> NotAsked | None:
    return None


def _no_graphs(session: Session) -> NotAsked | None:
    return None if session.facts.graphs else NotAsked("no graph of torch.compile ran", is_gap=False)


def _nothing_ran(session: Session) -> NotAsked | None:
    """A program that came to no operator cannot be asked further."""
    run = session.facts.run
    ran = run is not None and (run.steps or session.facts.account is not None)
    return None if ran else NotAsked("no operator ran")


def _no_reference(session: Session) -> NotAsked | None:
    if not session.plan.reference:
        return NotAsked("there is no --reference")
    return NotAsked("the reference is a file of losses") if reference_losses(session.plan) else None


def _no_time(session: Session) -> NotAsked | None:
    if session.facts.on_device:
        return _nothing_ran(session)
    return NotAsked("no operator ran on an accelerator, whose times the CPU's could be compared with")


def _about(steps: int | None, slower: float, runs: int = 1) -> Callable[[Session], float]:
    def seconds(session: Session) -> float:
        return runs * session.facts.seconds(session.plan.steps if steps is None else steps, slower)

    return seconds


QUESTIONS = (
    Question(
        "run",
        "how far the program comes, and which parts of it no tool sees",
        ask_run,
        _can_always_be_asked,
        lambda _: None,
    ),
    Question("graphs", "compiled graphs against their operators", ask_graphs, _no_graphs, _about(None, COMPARED)),
    Question(
        "operators",
        "every operator against the CPU and float64, and NaN",
        ask_operators,
        _nothing_ran,
        _about(None, COMPARED),
    ),
    Question(
        "reference", "call by call against the reference", ask_reference, _no_reference, _about(None, RECORDED, 4)
    ),
    Question(
        "loss",
        "which operators make the loss wrong, by trials on the CPU",
        ask_loss,
        no_bisection,
        lambda session: TRIALS * (session.facts.run.seconds if session.facts.run else 60),
    ),
    Question("memory", "memory that grows with the steps", ask_memory, _nothing_ran, _about(MEMORY_STEPS, SYNCHRONOUS)),
    Question("time", "operators that are slow on the device", ask_time, _no_time, _about(TIMED_STEPS, SYNCHRONOUS, 3)),
)
"""In their order."""
