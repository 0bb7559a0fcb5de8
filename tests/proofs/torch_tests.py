"""PyTorch's own tests (any unittest files) pass and fail as they do without a tool.

    torch_tests.py FILE.py ... [--tool NAME ...] [--level torch aten] [--only REGEX]

Each test runs plain, then once under every tool at each level, all in a single process. The files are not in torch's wheel:
take them from the sources of the torch that is installed. A test counts as well when it ends as it does run again without
a tool, or, at the torch level, under a torch-function mode that does nothing.

Exit status 1 when a test ends differently under a tool, or a tool fails.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shutil
import sys
import tempfile
import unittest
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _program import parser
from _workers import Progress
from op_db import DoesNothing, make_tools, start, tool_names, trouble_of


def tests_of(path: Path) -> Iterator[unittest.TestCase]:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    left: list[Any] = [unittest.defaultTestLoader.loadTestsFromModule(module)]
    while left:
        test = left.pop()
        if isinstance(test, unittest.TestSuite):
            left.extend(test)
        else:
            yield test


def outcome(test: unittest.TestCase, *scopes: Any) -> tuple[str, str]:
    """How a fresh run of the test inside the scopes ends, and its message when it fails."""
    result = unittest.TestResult()
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(scope)
        type(test)(test._testMethodName).run(result)
    for kind in ("errors", "failures", "unexpectedSuccesses", "expectedFailures", "skipped"):
        if problems := getattr(result, kind):
            text = problems[0][1] if isinstance(problems[0], tuple) else ""
            return kind, re.sub(r"\s+", " ", text)[-400:]
    return "passed", ""


def ends_so_anyway(test: unittest.TestCase, level: str, end: str) -> bool:
    """Under a mode that does nothing; or when it is run again without a tool (it registers a name, counts on a warning
    that is given once)."""
    return outcome(test)[0] == end or (level == "torch" and outcome(test, DoesNothing())[0] == end)


def differences(test: unittest.TestCase, tools: list[tuple[str, str]]) -> tuple[str, list[str]]:
    plain, _ = outcome(test)
    differing = []
    for name, level in tools:
        folder = tempfile.mkdtemp(prefix="torch_tests-")
        try:
            entered = make_tools(name, level, folder)
            under, text = outcome(test, *entered)
            trouble = "; ".join(filter(None, map(trouble_of, entered)))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if under != plain and not ends_so_anyway(test, level, under):
            trouble = f"{under} instead of {plain}: {text} {trouble}"
        if trouble:
            differing.append(f"{test.id()} ({name}, {level}): {trouble}")
    return plain, differing


def main() -> int:
    command_line = parser(__doc__)
    command_line.add_argument("files", nargs="+", type=Path, metavar="FILE.py")
    command_line.add_argument("--tool", nargs="+", default=tool_names(), choices=tool_names(), metavar="NAME")
    command_line.add_argument("--level", nargs="+", default=["torch", "aten"], choices=["torch", "aten"])
    command_line.add_argument("--only", default="", metavar="REGEX", help="only tests whose name matches")
    options = command_line.parse_args()
    start()

    tools = [(tool, level) for tool in options.tool for level in options.level]
    tests = [test for path in options.files for test in tests_of(path) if re.search(options.only, test.id())]
    progress = Progress(len(tests), "torch_tests")
    ends: Counter[str] = Counter()
    bad = []
    for test in tests:
        plain, differing = differences(test, tools)
        ends[plain] += 1
        bad += differing
        for line in differing:
            print(line, flush=True)
        progress.step(test.id())
    print(
        f"{len(tests)} tests ({', '.join(f'{count} {end}' for end, count in ends.items())}), each under {len(tools)} tools"
    )
    return 1 if bad or not tests else 0


if __name__ == "__main__":
    sys.exit(main())
