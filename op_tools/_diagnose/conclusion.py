"""The end of a diagnosis: the next commands, and the page of all results."""

from __future__ import annotations

from collections.abc import Iterator

from .._base.core import GRAPH_CALLS, Error
from .._base.error_text import one_line
from .._base.own_command import op_tools_words
from .answer import Answer, Asked, Cause, Culprit, in_order
from .program import shown
from .session import ANSWER, PAGE, Session

_BY_FALLBACK = (Cause.WRONG_OPERATOR, Cause.RACE, Cause.SLOW_OPERATOR, Cause.CRASH, Cause.HANG, Cause.RAISING_OPERATOR)
_MOST = 3


def _dispatched(culprits: list[Culprit]) -> list[str]:
    """Operators that OpFallback can move, as the dispatcher names them."""
    names = [culprit.op for culprit in culprits if culprit.op and not culprit.op.startswith(GRAPH_CALLS)]
    return list(dict.fromkeys(names))


def _commands(session: Session, culprits: list[Culprit]) -> Iterator[tuple[str, str]]:
    program = session.plan.program
    first = culprits[0].cause if culprits else Cause.NOT_KNOWN
    alike = [culprit for culprit in culprits if culprit.cause is first]
    ops = _dispatched(alike)
    saved = dict.fromkeys(culprit.saved for culprit in alike if culprit.saved)
    for folder in list(saved)[:_MOST] if first in (Cause.WRONG_OPERATOR, Cause.WRONG_RANK, Cause.RACE) else []:
        words = ["repro", folder, "--shrink", "--issue"]
        yield "to send: a script with torch alone, and a bug report", shown([*op_tools_words(), *words])
    if first in _BY_FALLBACK and ops:
        words = program.with_tools(["--fallback", "--level", "aten", "--ops", ",".join(ops)])
        yield "meanwhile: on the CPU", shown(words)
    if first is Cause.MISSING_OPERATOR:
        words = program.with_tools(["--fallback", "--fallback-on-missing"])
        yield "meanwhile: operators that the device lacks on the CPU", shown(words)
    if first is Cause.WRONG_COMPILER:
        yield (
            "meanwhile: without torch.compile, with a tool that looks on",
            shown(program.with_tools(["--autocompare", "--compiled", "eager"])),
        )
    if first is Cause.NOT_FINITE:
        words = program.with_tools(["--overflow", "--overflow-immediate", "--level", "aten"])
        yield "to stand at that line: it raises there", shown(words)


def finish(session: Session) -> Answer:
    """The answer, written beside the results."""
    facts, folder = session.facts, session.plan.folder
    culprits = in_order([*session.culprits, *facts.raised])
    answer = Answer(culprits, session.asked, facts.run.steps if facts.run else 0, facts.losses)
    answer.next_commands = list(_commands(session, culprits))
    page = folder / PAGE
    words = ["report", str(folder), "-o", str(page)]
    session.asked.append(Asked("report", "the page of all results"))
    session.say("the page of all results")
    try:
        session.report(words)
    except Error as error:
        session.gap(f"it failed: {one_line(error)}")
    answer.report = str(page) if page.is_file() else ""
    if answer.report:
        answer.next_commands.append(("all results", shown([*op_tools_words(), "report", str(folder), "--text"])))
    try:
        (folder / ANSWER).write_text(answer.to_json() + "\n", encoding="utf-8")
    except OSError as error:
        raise Error(f"{folder / ANSWER}: {error.strerror}") from None
    return answer
