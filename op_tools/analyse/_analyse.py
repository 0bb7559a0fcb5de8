"""An analysis from its inputs to its files. Called by `op-tools analyse`."""

from __future__ import annotations

import csv
import gc
import io
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._base.core import Error, __version__
from ._detector_copy import copy_with_detector
from ._dynamic import dynamic_rows
from ._file_facts import FileFacts, Problem
from ._fixes import unified_diff
from ._project import Project
from ._reports import Report, advice_rows, affinity_rows, api_rows, sarif
from ._rules import PACKAGED, Hit, Rules, read_rules
from ._sources import Source, find_sources, read_facts
from ._table import SupportTable
from ._third_party import third_party_rows

_CHUNK = 16  # files that a process reads at once
_FEW = 64  # below this processes cost more than they save

Progress = Callable[[int, int], None]


@dataclass
class Request:
    """The programs, and the options of their analysis."""

    inputs: Sequence[str]
    output: str
    table: SupportTable
    mode: str = "torch_apis"
    environment: Sequence[str] = ()
    api_files: Sequence[str] = ()
    rules: Sequence[str] = ()
    version: str = ""
    jobs: int = 0
    """Processes that read files; 0: as many as cores."""
    json: bool = False
    sarif: bool = False
    fix: bool = False
    detector: bool = False
    """Of dynamic_shape: the inputs are programs; each gets a copy that writes the report as it runs."""


@dataclass
class Outcome:
    """The outcome of an input."""

    input: str
    folder: Path
    report: Report
    log: list[str] = field(default_factory=list)


def analyse(request: Request, progress: Progress = lambda _done, _all: None) -> list[Outcome]:
    """Analyses each input and writes its folder `<input>_analysis`.

    Args:
        request: the programs and the options.
        progress: is called with the number of files that are read, and that there are.

    Returns:
        an outcome for each input.

    Raises:
        op_tools.Error: an input or another file is missing or of another kind; two inputs have the same name.
    """
    names = [_folder_name(one) for one in request.inputs]
    doubled = sorted({one for one in names if names.count(one) > 1})
    if doubled:
        raise Error(f"several inputs would be written to {doubled[0]}: analyse each of them with its own -o")
    if request.mode == "dynamic_shape":
        return [_dynamic(request, one, name) for one, name in zip(request.inputs, names, strict=True)]
    return _static(request, names, progress)


def _folder_name(name: str) -> str:
    path = Path(name)
    if not path.exists():
        raise Error(f"-i {name}: there is no such file or folder")
    resolved = path.resolve()
    return f"{resolved.stem if resolved.is_file() else resolved.name or 'root'}_analysis"


def _folder(request: Request, name: str) -> Path:
    folder = Path(request.output) / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Error(f"-o {request.output}: {name} cannot be made: {error.strerror}") from error
    return folder


def _static(request: Request, names: list[str], progress: Progress) -> list[Outcome]:
    known = _known_unsupported(request.api_files)
    rules = [rule for path in [PACKAGED, *map(Path, request.rules)] for rule in read_rules(path)]
    places = [*request.inputs, *request.environment]
    for folder in request.environment:
        if not Path(folder).exists():
            raise Error(f"-env {folder}: there is no such folder")
    sources_of = [find_sources(Path(one)) for one in places]
    started = time.monotonic()
    facts = _read([sources for sources, _ in sources_of], request.jobs, progress)
    seconds = time.monotonic() - started
    outcomes = []
    for index, (place, name) in enumerate(zip(request.inputs, names, strict=True)):
        own = facts[index]
        project = Project(
            [*own, *(fact for at, group in enumerate(facts) if at != index for fact in group)], request.table, known
        )
        report = Report(request.mode, files=len(own), lines=sum(fact.lines for fact in own))
        report.problems = [*sources_of[index][1], *(problem for fact in own for problem in fact.problems)]
        hits = _fill(request.mode, report, project, own, rules, sources_of[index][0])
        outcome = Outcome(place, _folder(request, name), report)
        unread = len({problem.file for problem in report.problems})
        read = (
            f"{unread} of them were not read, or not whole (unreadable.csv); the others" if unread else "all files were"
        )
        read = read if report.files or unread else "nothing was"
        outcome.log.append(f"{report.files} files, {report.lines} lines; {read} read in {seconds:.1f} s")
        _write(request, outcome, hits, sources_of[index][0])
        outcomes.append(outcome)
    return outcomes


def _fill(
    mode: str,
    report: Report,
    project: Project,
    own: list[FileFacts],
    rules: list[dict[str, Any]],
    sources: list[Source],
) -> list[Hit]:
    """The rows of a mode; gives the hits of rules."""
    if mode == "third_party":
        third_party_rows(project, own, report)
        return []
    wanted = ("affinity",) if mode == "affinity_apis" else ("precision", "performance")
    lines = _Lines({one.file: one.path for one in sources})
    hits = list(Rules(rules, wanted).apply(project, own, lines.of))
    if mode == "affinity_apis":
        affinity_rows(hits, report)
    else:
        api_rows((one for fact in own for one in project.findings(fact)), report)
        advice_rows(hits, report)
    return hits


class _Lines:
    """Lines of files, read when a rule asks for an argument's text."""

    def __init__(self, paths: dict[str, str]) -> None:
        self._paths = paths
        self._last: tuple[str, list[str]] = ("", [])

    def of(self, file: str) -> list[str]:
        """The lines of a file; none of a notebook."""
        if self._last[0] != file:
            path = self._paths.get(file, "")
            readable = path and not path.endswith(".ipynb")
            text = Path(path).read_text(encoding="utf-8", errors="replace") if readable else ""
            self._last = (file, text.splitlines())
        return self._last[1]


def _read(groups: list[list[Source]], jobs: int, progress: Progress) -> list[list[FileFacts]]:
    """The facts of all files, in their order, read by all cores."""
    every = [source for group in groups for source in group]
    jobs = min(jobs or len(os.sched_getaffinity(0)), 1 + len(every) // _FEW)
    chunks = [every[first : first + _CHUNK] for first in range(0, len(every), _CHUNK)]
    facts: list[FileFacts] = []
    for read in _chunks_read(chunks, jobs):
        facts += read
        progress(len(facts), len(every))
    result = []
    for group in groups:
        result.append(facts[: len(group)])
        facts = facts[len(group) :]
    return result


def _chunks_read(chunks: list[list[Source]], jobs: int) -> Iterator[list[FileFacts]]:
    if jobs < 2:
        yield from map(_read_chunk, chunks)
        return
    # Forked: a process that starts anew would import torch, which takes longer than to read a thousand files.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("fork")) as pool:
        for chunk, future in [(chunk, pool.submit(_read_chunk, chunk)) for chunk in chunks]:
            try:
                yield future.result()
            except BrokenProcessPool:
                reason = "the process that read it, or a neighbour of it, ended: out of memory? Try --jobs 1"
                yield [FileFacts(one.file, one.module, problems=[Problem(one.file, 0, reason)]) for one in chunk]


def _read_chunk(sources: list[Source]) -> list[FileFacts]:
    """Without garbage collection: syntax trees have no cycles, and the collector would look through them again and again."""
    gc.disable()
    try:
        return [read_facts(one) for one in sources]
    finally:
        gc.enable()


# Columns of its two reports about libraries, by which the files are known.
_API, _AFFECTED = "3rd-party API", "Affected 3rd-party API"


def _known_unsupported(files: Sequence[str]) -> dict[str, str]:
    """Functions of libraries that are not supported: full_unsupported_results.csv or framework_unsupported_op.csv."""
    csv.field_size_limit(1 << 30)
    unsupported: dict[str, str] = {}
    for path in files:
        try:
            text = Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise Error(f"-api {path}: {error.strerror}") from error
        rows = csv.DictReader(io.StringIO(text, newline=""))
        columns = rows.fieldnames or []
        if _API in columns:
            unsupported.update((row[_API], f"not supported, see {path}") for row in rows if row[_API])
        elif _AFFECTED in columns:
            for row in rows:
                named = row.get("Torch API") or row.get("OP Name") or ""
                for name in (row[_AFFECTED] or "").split("\n"):
                    if name:
                        unsupported.setdefault(name, f"uses {named}, see {path}")
        else:
            raise Error(
                f"-api {path}: has no column '3rd-party API' or 'Affected 3rd-party API': give full_unsupported_results.csv "
                "or framework_unsupported_op.csv of mode third_party"
            )
    return unsupported


def _dynamic(request: Request, place: str, name: str) -> Outcome:
    report = Report(request.mode)
    outcome = Outcome(place, _folder(request, name), report)
    if request.detector:
        loops, report.problems = copy_with_detector(Path(place), outcome.folder)
        where = ", ".join(loops) or "none calls backward(): write DETECTOR.start(...) around the items of yours"
        outcome.log.append(f"loops that are observed: {where}")
    else:
        dynamic_rows(Path(place), report)
        outcome.log.append(f"{report.lines} calls in {report.files} files")
    _write(request, outcome, [], [])
    return outcome


def _write(request: Request, outcome: Outcome, hits: list[Hit], sources: list[Source]) -> None:
    """The files of an input; each is written anew, others in the folder stay."""
    folder, report = outcome.folder, outcome.report
    table = request.table
    if request.mode != "dynamic_shape":
        outcome.log.insert(0, f"support as of torch {table.torch}, device {table.device}")
        if request.version and not _same_minor(request.version, table.torch):
            outcome.log.append(
                f"the code is for torch {request.version}, the support table of torch {table.torch}: names and operators of "
                "an operator of either may be missing in the other"
            )
    try:
        report.write(folder)
        if request.json:
            (folder / "analysis.json").write_text(report.to_json(table), encoding="utf-8", errors="backslashreplace")
        if request.sarif:
            text = sarif(report, __version__)
            (folder / "analysis.sarif").write_text(text, encoding="utf-8", errors="backslashreplace")
        if request.fix:
            paths = {one.file: one.path for one in sources}
            files = sorted({hit.file for hit in hits})
            diffs = [unified_diff(paths[one], one, [hit for hit in hits if hit.file == one]) for one in files]
            (folder / "fixes.diff").write_text("".join(diffs), encoding="utf-8")
        outcome.log += [f"{name}: {count} rows" for name, count in report.counts().items()]
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        lines = [f"{stamp} [INFO] {one}" for one in (f"input {outcome.input}, mode {request.mode}", *outcome.log)]
        lines += [f"{stamp} [WARNING] not read: {one.file}:{one.line}: {one.reason}" for one in report.problems]
        (folder / "pytorch_analysis.txt").write_text(
            "\n".join(lines) + "\n", encoding="utf-8", errors="backslashreplace"
        )
    except OSError as error:
        raise Error(f"-o {request.output}: {error.filename} cannot be written: {error.strerror}") from error


def _same_minor(version: str, other: str) -> bool:
    return version.split("+")[0].split(".")[:2] == other.split("+")[0].split(".")[:2]
