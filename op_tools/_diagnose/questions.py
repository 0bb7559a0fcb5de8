"""The questions, in the order in which an experienced engineer asks them. Each is a function that runs commands and reads their results."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .._base.account import coverage_from
from .._base.core import Coverage, Error
from .._base.data_file import read_json
from .._base.declared_rows import BlackBoxRow
from .._base.results import duration_text
from .._bisect.outcome import REFERENCE_BAND, Metric, curve_distance, read_reference
from .._report.part import Finding, Origin, Part, number_of, text_of
from .._report.row_files import csv_rows
from .._tools.black_box_file import BlackBox
from .._tools.record import RECORDING
from .answer import Cause, Culprit
from .program import as_program, replay_words
from .runs import Ended, Run, boxes_below
from .session import NotAsked, Plan, Question, Session, parts_of, wrong_findings

_FIRST_SHARE = 0.25  # of the budget for the first run, which shows whether the program ends by itself
_UNTIL_STEP = 10  # of a program that goes on, when the loss is finite
_TIMED_STEPS, _MEMORY_STEPS = 6, 32
_COMPARED, _RECORDED, _SYNCHRONOUS, _BESIDE = 12.0, 3.0, 2.0, 1.5  # how many times longer a step takes under the tools
_TRIALS = 20  # runs of a bisection, about
_MOST_REPROS = 3
_WIDEST = 5  # operators that are named as the answer of a comparison; of more the worst
_SLOW_SHARE, _SLOW_RATIO, _SLOW_MS = 0.25, 10.0, 0.5
_GROWTH = 1e-3  # of the peak, per step: memory that grows less does not end a program


def _seconds_of_steps(session: Session, steps: int, slower: float) -> float:
    """A limit for a run of so many steps, with room for a busy machine."""
    return 60 + 4 * session.facts.seconds(steps, slower)


# --- 1: how far does it come? -----------------------------------------------------------------------------------------


def _newest(boxes: Iterable[BlackBox]) -> dict[int, BlackBox]:
    """Of each rank that of the process that made calls."""
    by_rank: dict[int, BlackBox] = {}
    for box in sorted(boxes, key=lambda box: box.started):
        if box.rows and not box.parent:
            by_rank[box.rank] = box
    return by_rank


def _of_row(row: BlackBoxRow, cause: Cause, rank: str, reason: str, *, certain: bool) -> Culprit:
    return Culprit(
        cause, row.op, row.phase, row.module, row.line, rank, row.step, reason, certain=certain, question="run"
    )


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
    if not culprits and cause is Cause.HANG:
        box = next(iter(stopped.values()), None)
        last = box.rows[-1] if box is not None else None
        reason = f"outside of any operator: {_last_frame(Path(run.folder)) or 'its stacks are beside the black box'}"
        word = _rank_word(box.rank, len(boxes)) if box is not None else ""
        line = _last_frame(Path(run.folder)) or (last.line if last else "")
        culprits = [
            Culprit(cause, "", "", last.module if last else "", line, word, last and last.step, reason, certain=True)
        ]
    return culprits


def _behind(boxes: dict[int, BlackBox]) -> set[str]:
    """Ranks that have begun fewer collectives than others, who wait for them."""
    numbers = {rank: max((row.number for row in box.rows), default=0) for rank, box in boxes.items()}
    return (
        {str(rank) for rank, number in numbers.items() if number < max(numbers.values())} if len(numbers) > 1 else set()
    )


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
    parts = Path(path).parts
    return (
        "site-packages" not in parts
        and "op_tools" not in parts
        and not path.startswith("<")
        and "lib" not in parts[:-2]
    )


def _waiting_for_each(session: Session, ops: Sequence[str]) -> Run:
    """The program again; it waits for the device after each of these operators, so that the guilty call is the open one."""
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
        if error.startswith("NotImplementedError"):
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
    return [Culprit(Cause.PROGRAM_RAISES, line=frames[-1] if frames else "", reason=error, certain=bool(error))]


def _error_line(output: str) -> str:
    """The last exception in an output."""
    errors = re.findall(r"^(?:\[rank\d+\]: ?)?((?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*)$", output, re.MULTILINE)
    errors = [error for error in errors if "ChildFailedError" not in error]
    return str(errors[-1])[:300] if errors else ""


def _accounts(folder: Path) -> list[Coverage]:
    accounts = []
    for file in sorted(folder.rglob("coverage.json")):
        try:
            accounts.append(coverage_from(read_json(file)))
        except (Error, TypeError, ValueError):
            continue
    return accounts


def _ask_run(session: Session) -> list[Culprit]:
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
        return _with_question(_stopped_in(session, run, Cause.CRASH), "run")
    if run.ended is Ended.HUNG:
        return _with_question(_stopped_in(session, run, Cause.HANG), "run")
    if run.ended is Ended.FAILED:
        return _with_question(_raised(session, run), "run")
    if run.ended is Ended.CUT:
        session.gap(f"the program went on when its time was over, at step {run.steps}: later steps")
    return []


def _with_question(culprits: Iterable[Culprit], name: str) -> list[Culprit]:
    return [replace(culprit, question=name) for culprit in culprits]


# --- 2: are compiled graphs right? ------------------------------------------------------------------------------------


def _steps_option(session: Session, tool: str) -> list[str]:
    return [f"--{tool}-steps", ",".join(map(str, range(session.plan.steps)))]


def _ask_graphs(session: Session) -> list[Culprit]:
    seconds = _seconds_of_steps(session, session.plan.steps, _COMPARED)
    compare = ["--autocompare", *_steps_option(session, "autocompare")]
    run = session.with_tools("graphs", [*compare, "--compiled", "check"], seconds, enough=session.plan.steps)
    wrong = wrong_findings(parts_of(session, Path(run.folder), "OpAutoCompare"))
    graphs = [finding for finding in wrong if finding.op.startswith("torch.compile.")]
    if not graphs:
        return []
    run = session.with_tools(
        "operators", [*compare, "--compiled", "nodes", "--level", "aten"], seconds, enough=session.plan.steps
    )
    operators = wrong_findings(parts_of(session, Path(run.folder), "OpAutoCompare"))
    if operators:
        return _of_findings(session, operators, Cause.WRONG_OPERATOR)
    return [replace(culprit, certain=True) for culprit in _of_findings(session, graphs, Cause.WRONG_COMPILER)]


# --- 3: is each operator right? ---------------------------------------------------------------------------------------


def _of_findings(session: Session, findings: Sequence[Finding], cause: Cause) -> list[Culprit]:
    """A culprit for each operator, phase and module, those with the earliest step first; with its ranks where not all have it."""
    ranks: dict[tuple[str, str], set[str]] = {}
    for finding in findings:
        ranks.setdefault((finding.op, finding.phase), set()).add(finding.rank)
    culprits: dict[tuple[str, str, str], Culprit] = {}
    order = sorted(findings, key=lambda finding: -(finding.worst or 0.0))
    kept = list(dict.fromkeys((finding.op, finding.phase) for finding in order))[:_WIDEST]
    for finding in order:
        place = finding.op, finding.phase
        of_ranks = ranks[place]
        some = 1 < session.facts.ranks > len(of_ranks)
        if place not in kept:
            continue
        culprit = Culprit(
            Cause.WRONG_RANK if some and cause is Cause.WRONG_OPERATOR else cause,
            finding.op,
            finding.phase,
            finding.module,
            finding.line,
            ",".join(sorted(of_ranks)) if some else "",
            finding.first_step,
            finding.text,
            finding.saved,
            question=session.asked[-1].name,
        )
        culprits.setdefault((*place, finding.module), culprit)
    return list(culprits.values())


def _came_in(parts: Sequence[Part]) -> list[Culprit]:
    """NaN or infinities that no call made: the first call that was given them."""
    if any(wrong_findings([part]) for part in parts):
        return []
    notes = [finding for part in parts for finding in part.findings if "passed them on" in finding.text]
    return [
        Culprit(
            Cause.DATA, one.op, one.phase, one.module, one.line, "", one.first_step, "the first operator " + one.text
        )
        for one in notes[:1]
    ]


def _ask_operators(session: Session) -> list[Culprit]:
    plan, facts = session.plan, session.facts
    finite = all(map(math.isfinite, facts.losses))
    options = ["--autocompare", *_steps_option(session, "autocompare"), "--overflow", "--level", "aten"]
    seconds = _seconds_of_steps(session, plan.steps, _COMPARED) + (0 if finite else facts.seconds(len(facts.losses), 2))
    run = session.with_tools("compared", options, seconds, enough=max(plan.steps, _UNTIL_STEP) if finite else None)
    folder = Path(run.folder)
    wrong = _of_findings(session, wrong_findings(parts_of(session, folder, "OpAutoCompare")), Cause.WRONG_OPERATOR)
    overflow = parts_of(session, folder, "OpOverflowCheck")
    # The first in the order of the calls: the others may be given its numbers, made finite on the way.
    producers = _of_findings(session, wrong_findings(overflow)[:1], Cause.NOT_FINITE)
    places = {culprit.place for culprit in wrong}
    # An operator that is wrong makes NaN because it is wrong; another may make them of numbers that it should not be given.
    producers = [replace(culprit, certain=not wrong) for culprit in producers if culprit.place not in places]
    raised = facts.raised
    facts.raised = []
    if raised:
        by_device = [culprit for culprit in wrong if "raised" in culprit.reason and culprit.op == raised[0].op]
        if by_device:
            return [replace(raised[0], certain=True, saved=by_device[0].saved)]
        producers.append(replace(raised[0], cause=Cause.PROGRAM_RAISES, certain=not wrong))
    return [*_confirmed(session, wrong), *_with_question(producers, "operators"), *_came_in(overflow)]


def _confirmed(session: Session, culprits: Sequence[Culprit]) -> list[Culprit]:
    """Each is tried in fresh processes, of each operator a call."""
    saved = {culprit.place: culprit.saved for culprit in reversed(culprits) if culprit.saved}
    shows: dict[tuple[str, str], bool] = {}
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
    return [replace(culprit, certain=shows.get(culprit.place, False)) for culprit in culprits]


# --- 4: where does it part from the reference? ------------------------------------------------------------------------


def reference_losses(plan: Plan) -> list[float]:
    """The numbers of a reference that is a file of losses; empty where it is none.

    Raises:
        op_tools.Error: the file holds no numbers.
    """
    path = Path(plan.reference)
    if not plan.reference or _is_recording(path) or path.suffix == ".py" or not path.is_file():
        return []
    return read_reference(plan.reference, Metric())


def _is_recording(path: Path) -> bool:
    return path.suffix == RECORDING or (path.is_dir() and any(path.glob(f"*{RECORDING}")))


def _recorded(session: Session, name: str, command: str | None) -> tuple[Path, Run]:
    folder = session.folder(name)
    options = ["--record", "--record-output-dir", str(folder / "recording"), *_steps_option(session, "record")]
    program = as_program(command) if command else None
    seconds = _seconds_of_steps(session, session.plan.steps, _RECORDED)
    run = session.with_tools(name, options, seconds, enough=session.plan.steps, program=program)
    return folder / "recording", run


def _first_divergence(file: Path) -> tuple[dict[str, Any] | None, str]:
    """The record of the first divergence, and the verdict of the comparison."""
    first, verdict = None, ""
    for line in file.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record.get("kind") == "first_divergence":
            first = first or record
        if record.get("kind") == "summary":
            verdict = str(record.get("verdict"))
    return first, verdict


def _ask_reference(session: Session) -> list[Culprit]:
    reference = Path(session.plan.reference)
    if not _is_recording(reference):
        reference, run = _recorded(session, "reference", session.plan.reference)
        metric = Metric()
        numbers = [number for line in run.output.splitlines() for number in metric.numbers(line)]
        _write_losses(session, numbers)
    recording, _ = _recorded(session, "recorded", None)
    file = session.folder("comparison.jsonl")
    words = ["compare", str(reference), str(recording), "--json", str(file)]
    session.op_tools("compare", words)
    if not file.is_file():
        session.gap("the recordings could not be compared")
        return []
    first, verdict = _first_divergence(file)
    if first is None:
        if verdict != "agrees":
            session.gap("the comparison of the recordings: not judged")
        return []
    rank = text_of(first, "rank") if session.facts.ranks > 1 else ""
    step = int(number_of(first, "step") or 0)
    culprit = Culprit(
        Cause.NOT_KNOWN,
        *(text_of(first, name) for name in ("op", "phase", "module", "line")),
        rank,
        step,
        text_of(first, "finding"),
        question="reference",
    )
    return _by_values(session, culprit, reference, recording)


def _by_values(session: Session, culprit: Culprit, reference: Path, recording: Path) -> list[Culprit]:
    """Captures the calls around the first divergence in both programs, and judges each."""
    listed = session.op_tools("next", ["compare", str(reference), str(recording), "--next"])
    commands = [line.strip() for line in listed.output.splitlines() if re.match(r"\s+(env |op-tools )", line)]
    captures = [command for command in commands if " compare --confirm " not in f" {command} "]
    confirm = next((command for command in commands if command not in captures), "")
    if len(captures) != 2 or not confirm or session.facts.ranks > 1:
        session.gap("the first call that differs was not judged by values")
        return [culprit]
    for number, command in enumerate(captures, 1):
        session.command(f"capture_{number}", shlex.split(command))
    file = session.folder("confirmed.jsonl")
    session.op_tools("confirm", [*shlex.split(confirm)[1:], "--json", str(file)])
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []
    rows = [row for row in rows if row.get("kind") == "confirmed"]
    at = [row for row in rows if row["op"] == culprit.op] or rows
    if not at:
        session.gap("the first call that differs was not captured in both programs")
        return [culprit]
    # Of calls of the same operator the first that differs.
    row = next((row for row in at if row["a"] == "differs" or row["b"] == "differs" or row["outputs"] != 0.0), at[-1])
    return [_judged(culprit, row)]


def _judged(culprit: Culprit, row: dict[str, Any]) -> Culprit:
    """The cause, of a call that was captured in both programs and run again."""
    saved = str(row["path_b"])
    if row["b"] == "differs":
        return replace(culprit, cause=Cause.WRONG_OPERATOR, saved=saved, certain=True)
    if row["a"] == "differs":
        reason = "the reference's own operator is wrong"
        return replace(culprit, cause=Cause.NOT_KNOWN, reason=reason, saved=str(row["path_a"]))
    if row["random"]:
        return replace(culprit, cause=Cause.RANDOM_NUMBERS, saved=saved, certain=row["inputs"] == 0.0)
    if not row["tensors"]:
        return replace(culprit, cause=Cause.DATA, saved=saved, certain=True)
    if row["inputs"] != 0.0:
        reason = "it is right, and its input differs, which no operator made that both programs call"
        return replace(culprit, cause=Cause.DATA, reason=reason, saved=saved, certain=True)
    if row["arguments"]:
        return replace(culprit, cause=Cause.PROGRAM_DIFFERS, reason=str(row["arguments"]), saved=saved, certain=True)
    return replace(culprit, reason="it is right in both programs: rounding", saved=saved)


# --- 5: the loss ------------------------------------------------------------------------------------------------------


def _write_losses(session: Session, numbers: Sequence[float]) -> None:
    if numbers and all(map(math.isfinite, numbers)):
        (session.plan.folder / "reference_losses.json").write_text(json.dumps(list(numbers)), encoding="utf-8")


def _losses_file(session: Session) -> str:
    """A file of right numbers; "" for none."""
    if reference_losses(session.plan):
        return session.plan.reference
    file = session.plan.folder / "reference_losses.json"
    return str(file) if file.is_file() else ""


def _no_bisection(session: Session) -> NotAsked | None:
    facts = session.facts
    if not facts.on_device:
        return NotAsked("no operator ran on an accelerator: there is nothing to move to the CPU", is_gap=False)
    if not facts.losses:
        return NotAsked("the program prints no loss ('loss 0.5' in each step)")
    if facts.run is None or facts.run.ended is not Ended.DONE:
        return NotAsked("the program does not end by itself: give it an argument with which it ends after some steps")
    if file := _losses_file(session):
        far = curve_distance(facts.losses, read_reference(file, Metric()))
        if far <= REFERENCE_BAND and not session.plan.ask_all:
            return NotAsked("the loss is that of the reference", is_gap=False)
    needed = _TRIALS * facts.run.seconds
    if needed > session.left:
        why = f"{_TRIALS} runs of the program take {duration_text(needed)}, more than is left of the budget (--budget)"
        return NotAsked(why)
    return None


def _ask_loss(session: Session) -> list[Culprit]:
    facts, folder = session.facts, session.folder("bisect")
    took = facts.run.seconds if facts.run else 60.0
    result = session.folder("bisect.json")
    words = ["bisect", "--timeout", f"{60 + 5 * took:.0f}", "--output", str(folder), "--json", str(result)]
    if file := _losses_file(session):
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
        if content["verdict"] in ("inconsistent", "not judged") and "the result is right" not in content["explanation"]:
            session.gap(f"{content['verdict']}: {content['explanation']}")
        return []
    cause = Cause.RACE if content["placebo"] else Cause.WRONG_OPERATOR
    saved = content["captured"]
    return [
        Culprit(
            cause,
            *(str(culprit[name]) for name in ("op", "phase", "module", "line")),
            reason="the loss is right when it runs on the CPU",
            saved=saved[number] if number < len(saved) else "",
            certain=True,
            question="loss",
        )
        for number, culprit in enumerate(content["culprits"])
    ]


# --- 6: memory --------------------------------------------------------------------------------------------------------


def _ask_memory(session: Session) -> list[Culprit]:
    seconds = _seconds_of_steps(session, _MEMORY_STEPS, _SYNCHRONOUS)
    run = session.with_tools("memory", ["--memory"], seconds, enough=_MEMORY_STEPS)
    parts = parts_of(session, Path(run.folder), "OpMemoryCheck")
    if run.steps < _FEWEST_MEMORY_STEPS:
        session.gap(f"{run.steps} training steps: whether memory grows is known from {_FEWEST_MEMORY_STEPS} on")
        return []
    culprits = []
    for part in parts:
        peak = sum(size for _, size, _ in part.bars)
        grows = [finding for finding in wrong_findings([part]) if finding.unit == "B/step"]
        for finding in sorted(grows, key=lambda finding: -(finding.worst or 0)):
            share = (finding.worst or 0.0) / peak if peak else 0.0
            if share < _GROWTH:
                continue  # a list of losses
            reason = f"{finding.text}, by {finding.worst or 0:.0f} bytes in each step"
            culprits += [
                replace(one, reason=reason, certain=True)
                for one in _of_findings(session, [finding], Cause.MEMORY_GROWS)
            ]
    return culprits[:1] + [culprit for culprit in culprits[1:] if culprit.line != culprits[0].line]


_FEWEST_MEMORY_STEPS = 8


# --- 7: time ----------------------------------------------------------------------------------------------------------


def _ask_time(session: Session) -> list[Culprit]:
    options = ["--time", "--time-mode", "sync", "--time-level", "aten", "--no-time-lines"]
    options += ["--time-with-stack", "--time-with-modules"]
    seconds = _seconds_of_steps(session, _TIMED_STEPS, _SYNCHRONOUS)
    run = session.with_tools("time", options, seconds, enough=_TIMED_STEPS)
    rows = [
        row
        for file in sorted(Path(run.folder).rglob("summary.csv"))
        for row in csv_rows(file, Origin())
        if _on_device(row)
    ]
    total = sum(number_of(row, "self_ms") or 0.0 for row in rows)
    if not rows:
        session.gap("no operator was timed on the device")
        return []
    by_op: dict[str, float] = {}
    for row in rows:
        calls = number_of(row, "calls") or 0.0
        typical = (number_of(row, "p50_ms") or 0.0) * calls  # the first call of each kind prepares
        by_op[text_of(row, "op")] = by_op.get(text_of(row, "op"), 0.0) + min(typical, number_of(row, "self_ms") or 0.0)
    total = sum(by_op.values())
    worst = [op for op, ms in sorted(by_op.items(), key=lambda item: -item[1]) if total and ms / total >= _SLOW_SHARE]
    slow = []
    for number, op in enumerate(worst, 1):
        if (ratio := _against_cpu(session, op, number)) is not None:
            most = max(
                (row for row in rows if text_of(row, "op") == op), key=lambda row: number_of(row, "self_ms") or 0.0
            )
            reason = f"{by_op[op] / total:.0%} of the operators' time; {ratio:.0f} times as long as on the CPU"
            names = (text_of(most, name) for name in ("op", "phase", "module", "line"))
            slow.append(Culprit(Cause.SLOW_OPERATOR, *names, reason=reason, certain=True, question="time"))
    return slow


def _on_device(row: Any) -> bool:
    return not text_of(row, "device").startswith("cpu")


def _against_cpu(session: Session, op: str, number: int) -> float | None:
    """How many times longer a call of an operator takes on the device than on the CPU; None where it does not."""
    name = f"call_{number}"
    folder = session.folder(name)
    options = ["--capture", "--level", "aten", "--ops", re.escape(op).replace("\\:", ":"), "--capture-max-calls", "2"]
    session.with_tools(name, [*options, "--steps", "1"], _seconds_of_steps(session, 2, _RECORDED), enough=2)
    times = {}
    for device in ("cpu", session.facts.device):
        file = folder / f"{device}.json"
        words = [*replay_words(), str(folder), "--run_times", "20", "--sync_time_measure", "--device", device]
        session.command(f"{name}_{device}", [*words, "--json", str(file)], seconds=300)
        if file.is_file():
            times[device] = _fastest(read_json(file))
    cpu, device_ms = times.get("cpu"), times.get(session.facts.device)
    if not cpu or not device_ms:
        session.gap(f"{op}: could not be timed by itself")
        return None
    ratio = device_ms / cpu
    return ratio if ratio >= _SLOW_RATIO and device_ms - cpu >= _SLOW_MS else None


def _fastest(report: dict[str, Any]) -> float | None:
    """The fastest run of each call, of these the longest: other work on the machine makes runs slower, never faster."""
    return max((min(times) for call in report.get("calls", []) if (times := call.get("forward_ms"))), default=None)


# --- All --------------------------------------------------------------------------------------------------------------


def _always(_: Session) -> NotAsked | None:
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


def _about(steps: int | None, slower: float, runs: int = 1) -> Any:
    def seconds(session: Session) -> float:
        return runs * session.facts.seconds(session.plan.steps if steps is None else steps, slower)

    return seconds


QUESTIONS = (
    Question("run", "how far the program comes, and what cannot be seen of it", _ask_run, _always, lambda _: None),
    Question("graphs", "compiled graphs against their operators", _ask_graphs, _no_graphs, _about(None, _COMPARED)),
    Question(
        "operators",
        "every operator against the CPU and float64, and NaN",
        _ask_operators,
        _nothing_ran,
        _about(None, _COMPARED),
    ),
    Question(
        "reference", "call by call against the reference", _ask_reference, _no_reference, _about(None, _RECORDED, 4)
    ),
    Question(
        "loss",
        "which operators make the loss wrong, by trials on the CPU",
        _ask_loss,
        _no_bisection,
        lambda session: _TRIALS * (session.facts.run.seconds if session.facts.run else 60),
    ),
    Question(
        "memory", "memory that grows with the steps", _ask_memory, _nothing_ran, _about(_MEMORY_STEPS, _SYNCHRONOUS)
    ),
    Question(
        "time", "operators that are slow on the device", _ask_time, _no_time, _about(_TIMED_STEPS, _SYNCHRONOUS, 3)
    ),
)
"""In their order."""
