"""The sums over all parts of a report: the verdict, the findings by mark, the modules as a tree."""

from __future__ import annotations

import contextlib
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from .._base.own_command import called_here
from .._base.rank_text import lines_of_ranks
from .._base.verdict import Verdict, worst
from .part import Command, Finding, Mark, Part, Place, worst_first


def verdict_of_parts(parts: Sequence[Part]) -> Verdict:
    """The worst verdict of the parts that have a verdict; without any, nothing was judged."""
    verdicts = [part.verdict for part in parts if part.verdict is not None]
    return worst(verdicts) if verdicts else Verdict.NOT_JUDGED


def verdict_sentence(parts: Sequence[Part]) -> str:
    """Which of the tools said so."""
    judged = [part for part in parts if part.verdict is not None]
    if not judged:
        return "no tool here gives a verdict"
    ranks: dict[str, set[str]] = {}
    for part in judged:
        if part.verdict is verdict_of_parts(parts):
            ranks.setdefault(part.tool, set()).add(part.origin.rank)
    deciding = [_tool_of_ranks(tool, sorted(of_tool)) for tool, of_tool in ranks.items()]
    text = {
        Verdict.DIFFERS: "something is wrong, as {} found",
        Verdict.NOT_JUDGED: "{} found nothing wrong, and did not look at all that matters",
        Verdict.AGREES: "nothing that {} looked at is wrong",
    }[verdict_of_parts(parts)]
    return text.format(_and_list(deciding))


def _tool_of_ranks(tool: str, ranks: Sequence[str]) -> str:
    if len(ranks) > 1:
        return f"{tool} of {len(ranks)} ranks"
    return f"{tool} of rank {ranks[0]}" if ranks[0] not in ("", "0") else tool


def parts_by_tool(parts: Sequence[Part], most: int) -> Iterator[tuple[str, Sequence[Part], Sequence[str]]]:
    """The parts of each tool. Of many ranks (`most` + 2, and more) those of `most`, the worst first, and a line for all others with the
    same verdict and gaps."""
    by_tool: dict[str, list[Part]] = {}
    for part in parts:
        by_tool.setdefault(part.tool, []).append(part)
    for tool, of_tool in by_tool.items():
        if len(of_tool) <= most + 1 or not all(part.origin.rank.isdecimal() for part in of_tool):
            yield tool, of_tool, []
            continue
        worst_parts = sorted(of_tool, key=lambda part: (part.verdict is not Verdict.DIFFERS, int(part.origin.rank)))
        texts = [(int(part.origin.rank), _verdict_and_gaps(part)) for part in worst_parts[most:]]
        yield tool, worst_parts[:most], lines_of_ranks(texts)


def _verdict_and_gaps(part: Part) -> str:
    return "; ".join([part.verdict.value if part.verdict is not None else "no verdict", *part.origin.reasons])


def _and_list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def commands_of_parts(parts: Sequence[Part]) -> list[Command]:
    """The next commands of all parts, and behind them those that start their programs again."""
    commands = [command for part in parts for command in part.commands]
    here = str(Path.cwd())
    for part in parts:
        command, folder = part.origin.command, part.origin.working_folder
        if command:
            with contextlib.suppress(ValueError):  # of a file that is damaged: no words of a shell
                command = shlex.join(called_here(shlex.split(command)))
            text = command if folder in ("", here) else f"(cd {shlex.quote(folder)} && {command})"
            commands.append(Command(f"the program of {part.tool} again, as it was started", text))
    return commands


@dataclass
class Kind:
    """The findings of all ranks with the same mark, operator, phase and module."""

    finding: Finding
    """Their sum; the reason, the line and the saved call are those of the first."""
    sources: list[tuple[int, Finding]]
    """The number of the part, and its finding; the rank with most rows first."""


def _kind_of(sources: list[tuple[int, Finding]]) -> Kind:
    findings = [finding for _, finding in sources]
    steps = [finding.first_step for finding in findings if finding.first_step is not None]
    worst_values = [finding.worst for finding in findings if finding.worst is not None]
    total = replace(
        findings[0],
        count=sum(finding.count for finding in findings),
        first_step=min(steps, default=None),
        worst=max(worst_values, default=None),
        steps=sum((finding.steps for finding in findings), Counter()),
    )
    return Kind(total, sorted(sources, key=lambda source: -source[1].count))


def kinds_by_mark(parts: Iterable[Part]) -> dict[Mark, list[Kind]]:
    """The kinds of finding, in the order of their importance. Two runs of a rank stay apart: the second may be another program."""
    numbered = {id(finding): number for number, part in enumerate(parts) for finding in part.findings}
    alike: dict[tuple[object, ...], dict[str, tuple[int, Finding]]] = {}
    for finding in worst_first([finding for part in parts for finding in part.findings]):
        names = (finding.mark, finding.tool, finding.op, finding.phase, finding.module, finding.unit, finding.table)
        reason = finding.text if finding.mark is not Mark.WRONG else ""
        run = next(run for run in count() if finding.rank not in alike.get((*names, reason, run), {}))
        alike.setdefault((*names, reason, run), {})[finding.rank] = (numbered[id(finding)], finding)
    by_mark: dict[Mark, list[Kind]] = {mark: [] for mark in Mark}
    for sources in alike.values():
        kind = _kind_of(list(sources.values()))
        by_mark[kind.finding.mark].append(kind)
    return by_mark


@dataclass
class Module:
    """A node of the tree of modules: its own figures with those of all modules inside."""

    name: str
    place: Place = field(default_factory=Place)
    inner: dict[str, Module] = field(default_factory=dict)


_MOST_DEPTH = 30  # a name of a module comes from outside


def module_tree(parts: Iterable[Part]) -> Module:
    """All modules of all parts."""
    root = Module("")
    for part in parts:
        for path, place in part.modules.items():
            node = root
            node.place.add(place)
            for name in path.split(".", _MOST_DEPTH):
                node = node.inner.setdefault(name, Module(name))
                node.place.add(place)
    return root


def lines_of_parts(parts: Iterable[Part]) -> list[tuple[str, Place]]:
    """The program's lines of all parts, those with wrong results first, then those that take longest."""
    lines: dict[str, Place] = {}
    for part in parts:
        for line, place in part.lines.items():
            lines.setdefault(line, Place()).add(place)
    return sorted(lines.items(), key=lambda item: (-item[1].wrong, -item[1].self_ms, -item[1].calls, item[0]))
