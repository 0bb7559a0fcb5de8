"""The sums over all parts of a report: the verdict, the findings by mark, the modules as a tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .._base.verdict import Verdict, worst
from .part import Finding, Mark, Part, Place, worst_first


def verdict_of_parts(parts: Sequence[Part]) -> Verdict:
    """The worst verdict of the parts that have a verdict; without any, nothing was judged."""
    verdicts = [part.verdict for part in parts if part.verdict is not None]
    return worst(verdicts) if verdicts else Verdict.NOT_JUDGED


def verdict_sentence(parts: Sequence[Part]) -> str:
    """Which of the tools said so."""
    judged = [part for part in parts if part.verdict is not None]
    if not judged:
        return "no tool here gives a verdict"
    deciding = list(dict.fromkeys(_tool_of_rank(part) for part in judged if part.verdict is verdict_of_parts(parts)))
    text = {
        Verdict.DIFFERS: "something is wrong, as {} found",
        Verdict.NOT_JUDGED: "{} found nothing wrong, and did not look at all that matters",
        Verdict.AGREES: "nothing that {} looked at is wrong",
    }[verdict_of_parts(parts)]
    return text.format(_and_list(deciding))


def _tool_of_rank(part: Part) -> str:
    return f"{part.tool} of rank {part.origin.rank}" if part.origin.rank not in ("", "0") else part.tool


def _and_list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def findings_by_mark(parts: Iterable[Part]) -> dict[Mark, list[tuple[int, Finding]]]:
    """The findings with the number of their part, in the order of their importance."""
    numbered = {id(finding): number for number, part in enumerate(parts) for finding in part.findings}
    ordered = worst_first([finding for part in parts for finding in part.findings])
    by_mark: dict[Mark, list[tuple[int, Finding]]] = {mark: [] for mark in Mark}
    for finding in ordered:
        by_mark[finding.mark].append((numbered[id(finding)], finding))
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
