"""Advice and replacements: rules in a data file (`rules.json`, and files of users), and where they apply.

A rule names calls, or a class or a function by name, parameters, bases and the names that its body uses. docs/analyse.md has its keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .._base.checks import checked_choice, checked_object, checked_pattern
from .._base.core import Error
from .._base.data_file import read_json
from ._file_facts import Definition, FileFacts, Use
from ._project import Project

PACKAGED = Path(__file__).with_name("rules.json")
_REPORTS = ("precision", "performance", "affinity")
_KINDS = {
    "id": str,
    "report": str,
    "text": str,
    "replacement": str,
    "type": str,
    "call": list,
    "without": list,
    "keyword_is": dict,
    "argument": str,
    "argument_not": str,
    "detail": str,
    "never_called": list,
    "once": str,
    "class": dict,
    "function": dict,
    "fix": dict,
    "example": str,
    "counterexample": str,
}


@dataclass(frozen=True)
class Hit:
    """A rule, and where it applies."""

    rule: dict[str, Any]
    file: str
    line: int
    end: int
    name: str
    kind: str
    """"class", "function", "torch" or "special"."""
    position: tuple[int, int] = (0, 0)
    """Of the closing parenthesis of the call that a fix changes."""


def read_rules(path: str | Path) -> list[dict[str, Any]]:
    """Reads a file of rules.

    Raises:
        op_tools.Error: it is missing, or a rule has an unknown key, no text, or nothing that it applies to.
    """
    hint = 'a file of rules is JSON: {"format": 1, "rules": [...]}'
    content = checked_object(str(path), read_json(path, hint), {"format": int, "rules": list}, needed=("rules",))
    for number, rule in enumerate(content["rules"], 1):
        _check_rule(f"{path}: rule {number}", rule)
    return list(content["rules"])


def _check_rule(where: str, content: Any) -> None:
    rule = checked_object(where, content, _KINDS, needed=("id", "text"))
    checked_choice(f"{where}: report", rule.get("report"), _REPORTS)
    if sum(key in rule for key in ("call", "class", "function")) != 1:
        raise Error(f"{where}: needs call, class or function")
    patterns = [rule.get("argument", ""), rule.get("argument_not", "")]
    for part in (rule.get("class"), rule.get("function")):
        patterns += [part.get("name", ""), *part.get("body", [])] if part else []
    for pattern in patterns:
        checked_pattern(where, pattern)


class Rules:
    """The rules of some reports, ready to be applied."""

    def __init__(self, rules: Iterable[dict[str, Any]], reports: Iterable[str]) -> None:
        wanted = frozenset(reports)
        self._by_call: dict[str, list[dict[str, Any]]] = {}
        self._by_body: list[dict[str, Any]] = []
        for rule in rules:
            if rule["report"] in wanted:
                for name in rule.get("call", ()):
                    self._by_call.setdefault(name, []).append(rule)
                if "call" not in rule:
                    self._by_body.append(rule)

    def apply(self, project: Project, own: Iterable[FileFacts], lines_of: Callable[[str], list[str]]) -> Iterator[Hit]:
        """Where the rules apply, in the order of the files.

        Args:
            project: the program.
            own: the files of it that are reported.
            lines_of: gives the lines of a file, for rules on arguments.
        """
        called = {project.resolve(use.symbol) for facts in project.facts for use in facts.uses if use.kind == "call"}
        for facts in own:
            once: set[str] = set()
            for use in facts.uses:
                for rule in self._by_call.get(project.resolve(use.symbol), ()):
                    if not _applies(rule, use, called, partial(lines_of, facts.file)):
                        continue
                    if rule.get("once") == "file" and rule["id"] in once:
                        continue
                    once.add(rule["id"])
                    name = project.resolve(use.symbol)
                    kind = rule.get("type") or ("torch" if name.startswith("torch.") else "function")
                    yield Hit(rule, facts.file, use.line, use.end, name, kind, use.position)
            yield from self._bodies(project, facts)

    def _bodies(self, project: Project, facts: FileFacts) -> Iterator[Hit]:
        if not self._by_body:
            return
        bodies: dict[str, set[str]] = {}
        for use in facts.uses:
            scope = use.scope
            while scope != facts.module and "." in scope:  # a method's body belongs to its class, too
                bodies.setdefault(scope, set()).add(project.resolve(use.symbol))
                scope = scope.rpartition(".")[0]
        for definition in sorted(facts.definitions.values(), key=lambda one: (one.line, one.name)):
            for rule in self._by_body:
                kind = "class" if "class" in rule else "function"
                wanted = rule[kind]
                if definition.is_class == (kind == "class") and _matches(
                    wanted, definition, bodies.get(definition.name, set()), project
                ):
                    short = definition.name.rpartition(".")[2]
                    yield Hit(rule, facts.file, definition.line, definition.end, short, kind)


def _applies(rule: dict[str, Any], use: Use, called: set[str], lines: Callable[[], list[str]]) -> bool:
    keywords = dict(use.keywords)
    without = rule.get("without", ())
    if use.kind == "name" or (without and (use.open or any(one in keywords for one in without))):
        return False
    if any(keywords.get(key) != value for key, value in rule.get("keyword_is", {}).items()):
        return False
    if rule.get("detail", use.detail) != use.detail or any(one in called for one in rule.get("never_called", ())):
        return False
    if "argument" in rule or "argument_not" in rule:
        text = " ".join(line.strip() for line in lines()[use.line - 1 : use.end])
        arguments = text[text.find("(") + 1 :]
        passed = [one.strip() for one in re.split(r",(?![^(]*\))", arguments.rstrip().rstrip(")") + ")")]
        if "argument" in rule and not any(re.fullmatch(rule["argument"], _closed(one)) for one in passed):
            return False
        if "argument_not" in rule and any(re.fullmatch(rule["argument_not"], one.rstrip(")")) for one in passed):
            return False
    return True


def _closed(text: str) -> str:
    """An argument without the parentheses that close the call around it."""
    while text.count(")") > text.count("("):
        text = text.removesuffix(")")
    return text


def _matches(wanted: dict[str, Any], definition: Definition, body: set[str], project: Project) -> bool:
    short = definition.name.rpartition(".")[2]
    if not re.fullmatch(wanted.get("name", ".*"), short):
        return False
    if any(one not in definition.parameters for one in wanted.get("parameters", ())):
        return False
    base = wanted.get("base", "")
    if base == "torch.nn.Module" and not project.is_module_class(definition.name):
        return False
    if base and base != "torch.nn.Module" and base not in map(project.resolve, definition.bases):
        return False
    return all(any(re.fullmatch(pattern, one) for one in body) for pattern in wanted.get("body", ()))
