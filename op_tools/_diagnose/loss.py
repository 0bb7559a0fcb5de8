"""Which operators make the loss wrong?"""

from __future__ import annotations

import os
from dataclasses import replace

from .._base.data_file import read_json
from .._base.results import duration_text
from .._bisect.outcome import REFERENCE_BAND, Metric, curve_distance, read_reference
from .answer import Cause, Culprit, culprit_at
from .reference import losses_file
from .runs import Ended
from .session import NotAsked, Session

TRIALS = 20
"""Runs of a bisection, about."""


def no_bisection(session: Session) -> NotAsked | None:
    facts = session.facts
    if not facts.on_device:
        return NotAsked("no operator ran on an accelerator: there is nothing to move to the CPU", is_gap=False)
    if not facts.losses:
        return NotAsked("the program prints no loss ('loss 0.5' in each step)")
    if facts.run is not None and facts.run.ended in (Ended.FAILED, Ended.CRASHED):
        return NotAsked(
            f"the program ends with status {facts.run.status}, and the loss of a trial counts with status 0"
        )
    if facts.run is None or facts.run.ended is not Ended.DONE:
        return NotAsked("the program does not end by itself: give it an argument with which it ends after some steps")
    if file := losses_file(session):
        far = curve_distance(facts.losses, read_reference(file, Metric()))
        if far <= REFERENCE_BAND and not session.plan.ask_all:
            return NotAsked("the loss is that of the reference", is_gap=False)
    needed = TRIALS * facts.run.seconds
    if needed > session.left:
        why = f"{TRIALS} runs of the program take {duration_text(needed)}, more than is left of the budget (--budget)"
        return NotAsked(why)
    return None


def ask_loss(session: Session) -> list[Culprit]:
    facts, folder = session.facts, session.folder("bisect")
    took = facts.run.seconds if facts.run else 60.0
    result = session.folder("bisect.json")
    words = ["bisect", "--timeout", f"{60 + 5 * took:.0f}", "--output", str(folder), "--json", str(result)]
    if file := losses_file(session):
        words += ["--reference", file]
    suspects = session.plan.folder / "operators" / "compared" / "op_autocompare_result"
    words += ["--suspects", str(suspects)] if any(suspects.rglob("autocompare.csv")) else []
    words += ["--resume"] if (folder / "state.jsonl").exists() else []
    session.op_tools("bisect", [*words, "--", *session.plan.program.plain()])
    if not result.is_file():
        session.gap("the bisection came to no result; its output is in " + os.fspath(folder))
        return []
    content = read_json(result)
    if content["verdict"] != "found":
        session.gap(f"{content['verdict']}: {content['explanation']}")
        return []
    cause = Cause.RACE if content["placebo"] else Cause.WRONG_OPERATOR
    saved = dict(enumerate(content["captured"]))
    return [
        replace(
            culprit_at(cause, culprit, "the loss is right when it runs on the CPU"),
            saved=saved.get(number, ""),
            certain=True,
        )
        for number, culprit in enumerate(content["culprits"])
    ]
