"""Mode third_party: which functions of a library use operators that the device does not run, directly or through others."""

from __future__ import annotations

from collections.abc import Iterable

from ._file_facts import FileFacts, Use
from ._project import Finding, Project, reached
from ._reports import Report, Row, affected_rows, is_vendor

Direct = dict[str, set[str]]


def third_party_rows(project: Project, own: list[FileFacts], report: Report) -> None:
    """Fills in the rows of the mode.

    Args:
        project: the library, and the programs that it is analysed with.
        own: the files that are reported.
    """
    edges = project.edges()
    bad: Direct = {}
    vendor: Direct = {}
    unknown: Direct = {}
    native: Direct = {}
    places: dict[str, list[tuple[str, int, str]]] = {}
    own_files = {id(one) for one in own}
    names = _native_names(project)
    for facts in project.facts:
        for use, symbol in _native_uses(project, facts, names):
            native.setdefault(use.scope, set()).add(symbol)
            places.setdefault(use.scope, []).append((facts.file, use.line, symbol))
        for finding in project.findings(facts):
            _sort(finding, bad, vendor, unknown, places, names)
    files = {name: one.file for one in own for name in (*one.definitions, f"{one.module}.<module>")}
    affected = {kind: _turned(reached(edges, direct), files) for kind, direct in _kinds(bad, vendor, unknown, native)}
    report.rows["framework_unsupported_op.csv"] = affected_rows(affected["bad"])
    report.rows["migration_needed_op.csv"] = affected_rows(affected["vendor"])
    report.rows["unknown_op.csv"] = affected_rows(affected["unknown"])
    unused = {name: affected["native"].get(name, set()) for one in own for name in one.native}
    report.rows["cuda_op.csv"] = affected_rows({**affected["native"]}) + [
        (name, "") for name, functions in sorted(unused.items()) if not functions and name not in affected["native"]
    ]
    broken = set(reached(edges, {**bad, **{key: bad.get(key, set()) | value for key, value in native.items()}}))
    calls = _calls_into(project, [one for one in project.facts if id(one) in own_files], broken)
    report.rows["full_unsupported_results.csv"] = _full(broken, files, places, calls)
    report.unsupported = len(report.rows["full_unsupported_results.csv"])


def _kinds(*kinds: Direct) -> Iterable[tuple[str, Direct]]:
    return zip(("bad", "vendor", "unknown", "native"), kinds, strict=True)


def _sort(
    finding: Finding,
    bad: Direct,
    vendor: Direct,
    unknown: Direct,
    places: dict[str, list[tuple[str, int, str]]],
    names: set[str],
) -> None:
    if is_vendor(finding.symbol):
        vendor.setdefault(finding.use.scope, set()).add(finding.symbol)
    elif finding.support.status == "unsupported":
        bad.setdefault(finding.use.scope, set()).add(finding.symbol)
        places.setdefault(finding.use.scope, []).append((finding.file, finding.use.line, finding.symbol))
    elif finding.support.status in ("unknown", "partial") and finding.symbol.removeprefix("torch.ops.") not in names:
        unknown.setdefault(finding.use.scope, set()).add(finding.symbol)


def _native_names(project: Project) -> set[str]:
    return {name for facts in project.facts for name in facts.native}


def _native_uses(project: Project, facts: FileFacts, names: set[str]) -> Iterable[tuple[Use, str]]:
    """Uses of names that the project's C++ sources define: torch.ops.NAMESPACE.NAME, or NAME of a module that is no source."""
    if not names:
        return
    for use in facts.uses:
        symbol = project.resolve(use.symbol)
        if symbol.startswith("torch.ops."):
            parts = symbol.split(".")
            if len(parts) >= 4 and ".".join(parts[2:4]) in names:
                yield use, ".".join(parts[2:4])
            continue
        short = symbol.rpartition(".")[2]
        if short in names and symbol not in project.definitions and not symbol.startswith("torch."):
            if symbol.startswith("?.") and (use.kind != "call" or short in project.methods):
                continue
            yield use, short


def _turned(reaching: dict[str, set[str]], files: dict[str, str]) -> dict[str, set[str]]:
    """name -> functions of the library that reach it."""
    result: dict[str, set[str]] = {}
    for function, names in reaching.items():
        if function in files:
            for name in names:
                result.setdefault(name, set()).add(function)
    return result


def _calls_into(project: Project, own: list[FileFacts], broken: set[str]) -> dict[str, list[tuple[str, int, str]]]:
    calls: dict[str, list[tuple[str, int, str]]] = {}
    for facts in own:
        for use in facts.uses:
            target = project.calls(project.resolve(use.symbol))
            if target in broken and target != use.scope:
                calls.setdefault(use.scope, []).append((facts.file, use.line, target))
    return calls


def _full(
    broken: set[str],
    files: dict[str, str],
    places: dict[str, list[tuple[str, int, str]]],
    calls: dict[str, list[tuple[str, int, str]]],
) -> list[Row]:
    rows = []
    for name in broken:
        if name in files:
            reasons = sorted({*places.get(name, []), *calls.get(name, [])})
            rows.append(
                (
                    files[name],
                    name,
                    "\n".join(
                        f"file_path:{file}, start_line:{line}, api_name:{called}" for file, line, called in reasons
                    ),
                )
            )
    return sorted(rows)
