"""Are compiled graphs right, is each operator right, and where is the first NaN?"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .._base.core import GRAPH_CALLS
from .._report.overflow import PASSED_ON
from .._report.part import Part
from .answer import Cause, Culprit
from .session import COMPARED, Session, culprits_of_findings, parts_of, wrong_findings

_UNTIL_STEP = 10  # of a program that goes on, when the loss is finite
_MOST_REPROS = 3


def ask_graphs(session: Session) -> list[Culprit]:
    seconds = session.seconds_of_steps(session.plan.steps, COMPARED)
    compare = ["--autocompare", *session.steps_option("autocompare")]
    run = session.with_tools("graphs", [*compare, "--compiled", "check"], seconds, enough=session.plan.steps)
    parts = parts_of(session, Path(run.folder), "OpAutoCompare")
    graphs = [finding for finding in wrong_findings(parts) if finding.op.startswith(GRAPH_CALLS)]
    if not graphs:
        return []
    run = session.with_tools(
        "operators", [*compare, "--compiled", "nodes", "--level", "aten"], seconds, enough=session.plan.steps
    )
    one_by_one = parts_of(session, Path(run.folder), "OpAutoCompare")
    if operators := wrong_findings(one_by_one):
        return culprits_of_findings(one_by_one, operators, Cause.WRONG_OPERATOR)
    return [replace(culprit, certain=True) for culprit in culprits_of_findings(parts, graphs, Cause.WRONG_COMPILER)]


def _came_in(parts: Sequence[Part]) -> list[Culprit]:
    """NaN or infinities that no call made: the first call that was given them."""
    if any(wrong_findings([part]) for part in parts):
        return []
    passed_on = [finding for part in parts for finding in part.findings if finding.text == PASSED_ON]
    return [replace(culprit, rank="") for culprit in culprits_of_findings(parts, passed_on[:1], Cause.DATA)]


def ask_operators(session: Session) -> list[Culprit]:
    plan, facts = session.plan, session.facts
    finite = all(map(math.isfinite, facts.losses))
    options = ["--autocompare", *session.steps_option("autocompare"), "--overflow", "--level", "aten"]
    seconds = session.seconds_of_steps(plan.steps, COMPARED) + (0 if finite else facts.seconds(len(facts.losses), 2))
    run = session.with_tools("compared", options, seconds, enough=max(plan.steps, _UNTIL_STEP) if finite else None)
    folder = Path(run.folder)
    compared = parts_of(session, folder, "OpAutoCompare")
    wrong = culprits_of_findings(compared, wrong_findings(compared), Cause.WRONG_OPERATOR)
    overflow = parts_of(session, folder, "OpOverflowCheck")
    # The first in the order of the calls: the others may be given its numbers, made finite on the way.
    producers = culprits_of_findings(overflow, wrong_findings(overflow)[:1], Cause.NOT_FINITE)
    places = {culprit.place for culprit in wrong}
    # An operator that is wrong makes NaN because it is wrong; another may make them of numbers that it should not be given.
    producers = [replace(culprit, certain=not wrong) for culprit in producers if culprit.place not in places]
    raised = facts.raised
    facts.raised = []
    if raised:
        by_device = [culprit for culprit in wrong if culprit.op == raised[0].op]  # the CPU returned
        if by_device:
            return [replace(raised[0], certain=True, saved=by_device[0].saved)]
        producers.append(replace(raised[0], cause=Cause.PROGRAM_RAISES, certain=not wrong))
    return [*_confirmed(session, wrong), *producers, *_came_in(overflow)]


def _confirmed(session: Session, culprits: Sequence[Culprit]) -> list[Culprit]:
    """Each is tried in fresh processes, of each operator a call, unless something confirms it already."""
    confirmed = {culprit.place for culprit in culprits if culprit.certain}
    saved = {culprit.place: culprit.saved for culprit in reversed(culprits) if culprit.saved}
    shows: dict[tuple[str, str], bool] = {}
    saved = {place: folder for place, folder in saved.items() if place not in confirmed}
    for number, place in enumerate(list(reversed(saved))[:_MOST_REPROS], 1):
        name = re.sub(r"\W+", "_", place[0]).strip("_")
        script = session.folder(f"repro_{number}") / f"repro_{name}.py"
        script.parent.mkdir(parents=True, exist_ok=True)
        run = session.op_tools(f"repro_{number}_output", ["repro", saved[place], "-o", str(script)], seconds=300)
        shows[place] = run.status == 0
        if run.status != 0:
            session.gap(
                f"{place[0]}: its saved call does not show it in fresh processes (state, a race, or a limit of the script)"
            )
    return [replace(culprit, certain=culprit.certain or shows.get(culprit.place, False)) for culprit in culprits]
