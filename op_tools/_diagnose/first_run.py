"""The first question: how far does the program come, and where does it stop?"""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path

from .._base.account import ACCOUNT_FILE, coverage_from
from .._base.core import Coverage, Error
from .._base.data_file import read_json
from .._base.declared_rows import BlackBoxRow
from .._bisect.outcome import Metric
from .._tools.black_box_file import BlackBox
from .answer import Cause, Culprit
from .runs import Ended, Run, boxes_below
from .session import Session

_FIRST_SHARE = 0.25  # of the budget: it shows whether the program ends by itself
_LIBRARY = sysconfig.get_path("stdlib")
_OF_EXCEPTION = 1  # Python's exit status, and torchrun's for any of its ranks
# Python's own words of an exception that nobody caught; a file that cannot be compiled has no traceback.
_UNCAUGHT = re.compile(r"Traceback \(most recent call last\)|^(?:Syntax|Indentation|Tab)Error: ", re.MULTILINE)
# torch's words where no kernel is there, and devices' own; not those of a kernel that refuses a dtype, on the CPU as well.
_NO_KERNEL = re.compile(r"Could not run '|no fallback function is registered|not currently (?:implemented|supported)")
_BESIDE = 1.5  # times longer a step takes under the tools of this run


def _newest(boxes: Iterable[BlackBox]) -> dict[int, BlackBox]:
    """Of each rank that of the process that made calls."""
    by_rank: dict[int, BlackBox] = {}
    for box in sorted(boxes, key=lambda box: box.started):
        if box.rows and not box.parent:
            by_rank[box.rank] = box
    return by_rank


def _of_row(row: BlackBoxRow, cause: Cause, rank: str, reason: str, *, certain: bool) -> Culprit:
    return Culprit(cause, row.op, row.phase, row.module, row.line, rank, row.step, reason, certain=certain)


def _rank_word(rank: int, ranks: int) -> str:
    return str(rank) if ranks > 1 else ""


def _suspect_ops(boxes: Iterable[BlackBox]) -> list[str]:
    """Operators that a device may be in: they have returned, and nothing shows that the device did them."""
    return sorted({row.op for box in boxes for row in [*box.suspects, *box.open] if row.op})


def _stopped_in(session: Session, run: Run, cause: Cause) -> list[Culprit]:
    """Of a program that died or hangs: the call that is open."""
    boxes = _newest(boxes_below(Path(run.folder)))
    stopped = {rank: box for rank, box in boxes.items() if not box.closed} or boxes
    if suspects := [box for box in stopped.values() if box.suspects]:
        stopped |= _newest(boxes_below(Path(_waiting_for_each(session, _suspect_ops(suspects)).folder)))
    culprits = []
    for rank, box in stopped.items():
        word = _rank_word(rank, len(boxes))
        if box.open and not box.closed:
            culprits.append(_of_row(box.open[-1], cause, word, box.verdict, certain=True))
    behind = _behind(boxes)
    if culprits and behind:
        culprits = [culprit for culprit in culprits if culprit.rank in behind] or culprits
    return culprits or [_outside(cause, box, Path(run.folder), len(boxes)) for box in list(stopped.values())[:1]]


def _outside(cause: Cause, box: BlackBox, folder: Path, ranks: int) -> Culprit:
    """Of a process that hangs or died outside of any operator: in a lock, a queue, a file, a library."""
    last, frame = box.rows[-1], _last_frame(folder)
    reason = f"outside of any operator; {box.verdict}"
    word = _rank_word(box.rank, ranks)
    return Culprit(
        cause, module=last.module, line=frame or last.line, rank=word, step=last.step, reason=reason, certain=True
    )


def _behind(boxes: dict[int, BlackBox]) -> set[str]:
    """Ranks that have begun fewer collectives than others, who wait for them."""
    numbers = {rank: max((row.number for row in box.rows), default=0) for rank, box in boxes.items()}
    return {str(rank) for rank, number in numbers.items() if number < max(numbers.values(), default=0)}


def _last_frame(folder: Path) -> str:
    """The program's line in the stacks that the black box wrote when it saw that nothing went on."""
    for file in sorted(folder.rglob("*.stacks")):
        for path, line, function in re.findall(
            r'File "([^"]+)", line (\d+) in (\S+)', file.read_text(errors="replace")
        ):
            if _is_of_program(path):
                return f"{path}:{line} {function}"
    return ""


def _is_of_program(path: str) -> bool:
    """Not a file of Python, of a package that is installed, or of ours."""
    parts = Path(path).parts
    return not path.startswith(("<", _LIBRARY)) and "site-packages" not in parts and "op_tools" not in parts


def _waiting_for_each(session: Session, ops: Sequence[str]) -> Run:
    """The program again; it waits for the device after each of these operators, so that the open call is the guilty call."""
    options = ["--time", "--time-mode", "sync", "--time-level", "aten", "--no-time-lines", "--time-ops", ",".join(ops)]
    took = session.facts.run.seconds if session.facts.run else 60
    return session.with_tools("waiting", options, 60 + 2 * took)


def _raised(session: Session, run: Run) -> list[Culprit]:
    """Of a program that ended with an error."""
    boxes = _newest(boxes_below(Path(run.folder)))
    output = run.output
    error = _error_line(output)
    for rank, box in boxes.items():
        if not box.rows or box.rows[-1].state != "failed":
            continue
        row, word = box.rows[-1], _rank_word(rank, len(boxes))
        if error.startswith("NotImplementedError") and _NO_KERNEL.search(error):
            return [_of_row(row, Cause.MISSING_OPERATOR, word, error, certain=True)]
        session.facts.raised = [_of_row(row, Cause.RAISING_OPERATOR, word, error, certain=False)]
        if session.facts.on_device or session.facts.account is None:
            return []  # the next question runs the call on the CPU, too
        return [_of_row(row, Cause.PROGRAM_RAISES, word, error, certain=True)]
    frames = [
        f"{path}:{line} {function}"
        for path, line, function in re.findall(r'File "([^"]+)", line (\d+), in (\S+)', output)
        if _is_of_program(path)
    ]
    # Not certain: a check of the program that a wrong operator lets fail ends here, too.
    if run.status != _OF_EXCEPTION or not _UNCAUGHT.search(output) or not (error or frames):
        reason = f"status {run.status}" + (f", behind {error}" if error else "")
        return [Culprit(Cause.PROGRAM_EXITS, line=frames[-1] if frames else "", reason=reason)]
    return [Culprit(Cause.PROGRAM_RAISES, line=frames[-1] if frames else "", reason=error or "it ends with an error")]


def _error_line(output: str) -> str:
    """The last exception in an output."""
    errors = re.findall(r"^(?:\[rank\d+\]: ?)?((?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*)$", output, re.MULTILINE)
    errors = [error for error in errors if "ChildFailedError" not in error]
    return str(errors[-1])[:300] if errors else ""


def _accounts(folder: Path) -> list[Coverage]:
    accounts = []
    for file in sorted(folder.rglob(ACCOUNT_FILE)):
        try:
            accounts.append(coverage_from(read_json(file)))
        except (Error, TypeError, ValueError):
            continue
    return accounts


def ask_run(session: Session) -> list[Culprit]:
    options = ["--observe", "--observe-detail", "1", "--observe-max-calls", "1000"]
    run = session.with_tools("program", options, max(60.0, _FIRST_SHARE * 60 * session.plan.minutes))
    facts, folder = session.facts, Path(run.folder)
    facts.run = run
    boxes = _newest(boxes_below(folder))
    facts.ranks = max(1, len(boxes))
    accounts = _accounts(folder)
    facts.account = max(accounts, key=lambda account: account.seen, default=None)
    metric = Metric()
    facts.losses = [number for line in run.output.splitlines() for number in metric.numbers(line)]
    begins = [box.rows[0].begun - box.started for box in boxes.values()]
    total = run.seconds
    facts.first_step = (
        max(1.0, total - sum(row.ms or 0 for box in boxes.values() for row in box.rows) / 1e3) if boxes else total
    )
    facts.per_step = (
        max(0.0, total - min(begins, default=0.0)) / max(1, run.steps) / _BESIDE if run.steps > 1 else total
    )
    facts.first_step = min(facts.first_step, total - facts.per_step * max(0, run.steps - 1)) if run.steps else total
    for account in accounts:
        for reason in account.reasons():
            if account.seen and "graph" not in reason:
                session.gap(reason)
    if not boxes:
        session.gap("no operator of torch ran under op_tools: another Python, or none")
    if run.ended is Ended.CRASHED:
        return _stopped_in(session, run, Cause.CRASH)
    if run.ended is Ended.HUNG:
        return _stopped_in(session, run, Cause.HANG)
    if run.ended is Ended.FAILED:
        return _raised(session, run)
    if run.ended is Ended.CUT:
        session.gap(f"the program went on when its time was over, at step {run.steps}: later steps")
    return []
