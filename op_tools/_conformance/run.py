"""A run of the suite: facts, self-test, the session of this shard, and the reports of all shards."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from .._base.core import Error, __version__, tolerance_text
from .._base.verdict import Verdict, verdict_of
from .._torch.rank_shares import Ranks, ranks
from .._torch.run_facts import program_facts
from .case import Case
from .coverage import coverage_of
from .exceptions import Exceptions
from .golden import write_facts
from .reports import saved_text, verdict_text, write_reports
from .rows import ROWS_FILE, FoundRows, Row, RowWriter, packed, rows_below, shard_text, unpacked
from .self_test import SelfTest
from .shard_run import Session, WorkerPlan, share_of
from .summary import FORMAT, IDS, LOST, RUN_FILE, read_run_facts, result_of, summary_of, verdict_in

_VARIABLES = ("OP_", "AUTOCOMPARE_", "TORCH", "PYTORCH", "OMP_", "MKL_", "CUDA_", "CUBLAS", "NVIDIA_")
_NOT_FINISHED = "it is not finished"  # the self-test
# Settings of a run that must be the same for all its shards, and where it is resumed.
_SAME = ("list", "cases", "device", "torch", "method", "phase", "golden", "exceptions", "keeps", "timed", "graphs")


@dataclass(frozen=True)
class Settings:
    """Where a run puts its files, and which part of it this process is."""

    folder: Path
    jobs: int
    timeout: float
    shard: tuple[int, int] = (0, 1)
    resume: bool = False
    exceptions_file: str = ""
    lost_calls: int = 0
    """Reports of captured calls that are damaged or missing: they became no cases."""


def _digest_of_file(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""


def facts_of(cases: Sequence[Case], plan: WorkerPlan, settings: Settings) -> dict[str, Any]:
    """The facts in run.json: all that the verdicts depend on."""
    digest = hashlib.sha256()
    for case in cases:
        digest.update(case.to_json().encode() + b"\n")
    program = program_facts()
    return {
        "format": FORMAT,
        "device": plan.subject,
        "devices": program["devices"],
        "torch": torch.__version__,
        "op_tools": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "git": program["git"],
        "command": program["argv"],
        "list": digest.hexdigest(),
        "cases": len(cases),
        "sources": dict(sorted(Counter(case.source for case in cases).items())),
        "seed": "of each tensor: the case's id and the tensor's place",
        "method": plan.method or "relative",
        "tolerances": tolerance_text().splitlines()[0],
        "phase": plan.phase,
        "golden": plan.golden,
        "keeps": plan.writes,
        "timed": plan.timed,
        "graphs": asdict(plan.graphs) if plan.graphs else None,
        "exceptions": _digest_of_file(settings.exceptions_file),
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLES)},
        "coverage": coverage_of(plan.device),
        "self-test": _NOT_FINISHED,
        IDS: [case.id for case in cases],
        LOST: settings.lost_calls,
    }


def _begin(settings: Settings, facts: dict[str, Any]) -> Path:
    """Makes the folder and run.json; the file of this shard's rows."""
    folder = settings.folder
    rows_file = folder / shard_text(ROWS_FILE, *settings.shard)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / RUN_FILE).exists():
            known = read_run_facts(folder)
            if other := [name for name in _SAME if known.get(name) != facts[name]]:
                raise Error(f"-o {folder}: has a run with another {', '.join(other)}; give another folder")
            if rows_file.exists() and not settings.resume:
                raise Error(f"-o {folder}: has a result; go on with it by --resume, or give another folder")
        else:
            _write_facts(folder, facts)
    except OSError as error:
        raise Error(f"-o {folder}: {error.strerror}") from None
    return rows_file


def _write_facts(folder: Path, facts: dict[str, Any]) -> None:
    """In a single step, as another shard may read it."""
    path = folder / f"{RUN_FILE}.{os.getpid()}"
    path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    path.replace(folder / RUN_FILE)


def _tested(facts: dict[str, Any], troubles: Iterable[str]) -> dict[str, Any]:
    """The facts with the answers of the shards' self-tests."""
    return {**facts, "self-test": "; ".join(dict.fromkeys(filter(None, troubles)))}


def run_cases(
    cases: Sequence[Case],
    plan: WorkerPlan,
    settings: Settings,
    exceptions: Exceptions,
    self_test: SelfTest,
    say: Callable[[str], None],
) -> Verdict:
    """Runs this process's share of the cases, and writes the files of the result.

    Args:
        cases: of all shards.
        plan: the task of the workers.
        settings: of this process.
        exceptions: known failures of the device.
        self_test: of this process; is waited for.
        say: takes lines for people.

    Returns:
        of the rows of this shard; under torchrun of all, on all ranks.

    Raises:
        op_tools.Error: the folder cannot be used, or a worker process could not start.
    """
    with ranks(settings.folder) as group:
        if group.count > 1:
            settings = Settings(**{**vars(settings), "shard": (group.number, group.count)})
        facts = facts_of(cases, plan, settings)
        rows_file = _begin(settings, facts)
        if plan.writes and group.number == 0:
            write_facts(
                settings.folder, plan.writes, {name: facts[name] for name in ("device", "devices", "torch", "list")}
            )
        mine = share_of(cases, *settings.shard)
        session = Session(mine, plan, settings.jobs, settings.timeout, exceptions, say)
        rows = session.run(rows_file, resume=settings.resume)
        share = facts[IDS] if group.count > 1 else [case.id for case in mine]
        return group.agreed(_finish(group, settings, facts, rows, share, self_test.outcome(), say))


def _finish(
    group: Ranks,
    settings: Settings,
    facts: dict[str, Any],
    rows: dict[str, list[Row]],
    share: list[str],
    trouble: str,
    say: Callable[[str], None],
) -> Verdict:
    """Writes the reports; of all ranks on rank 0, which gives the verdict of their share of the cases."""
    gathered = group.gathered((packed(rows), trouble))
    if gathered is None:
        return Verdict.NOT_JUDGED  # rank 0 tells
    for text in group.missing:
        say(f"NOT JUDGED: {text}")
    parts = [({}, "") if part is None else (unpacked(part[0]), part[1]) for part in gathered]
    for number, (of_rank, _) in enumerate(parts[1:], 1):
        path = settings.folder / shard_text(ROWS_FILE, number, group.count)
        if not path.exists():  # of a rank on another machine
            writer = RowWriter(path)
            for of_case in of_rank.values():
                writer.write(of_case)
            writer.close()
    troubles = [said for _, said in parts]
    if settings.shard[1] > group.count and (known := read_run_facts(settings.folder)["self-test"]) != _NOT_FINISHED:
        troubles.insert(0, known)  # of a shard that ended before
    facts = _tested(facts, troubles)
    _write_facts(settings.folder, facts)
    summary = write_reports(settings.folder, result_of(rows_below(settings.folder), facts))
    say(saved_text(summary) if facts["keeps"] else verdict_text(summary))
    mine = FoundRows(item for of_rank, _ in parts for item in of_rank.items())
    verdict = verdict_in(summary_of(result_of(mine, {**facts, IDS: share})))
    unseen = verdict is Verdict.NOT_JUDGED or bool(group.missing)
    return verdict_of(wrong=verdict is Verdict.DIFFERS, unseen=unseen)
