"""Which file may know what. A line in the wrong file is found here, by name, before a reviewer has to."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = [
    path.relative_to(ROOT).as_posix()
    for folder in ("src", "bindings", "tools", "examples", "tests/cpp")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".cpp", ".h")
]
PRODUCT = [path for path in CODE if not path.startswith(("tests/", "examples/"))]

# what: (pattern, where it is looked for, files that may have it: a name, or a folder that ends with "/")
RULES = {
    "torch's umbrella headers take 3 to 15 s each": (
        r'#include [<"](torch/extension\.h|torch/torch\.h|ATen/ATen\.h|torch/library\.h)',
        PRODUCT,
        [],
    ),
    "the environment is read in one place": (
        r"\b(secure_)?getenv\s*\(|\benviron\b",
        PRODUCT,
        ["src/base/read_options.cpp", "src/base/log.cpp"],
    ),
    "spdlog and its fmt do not meet torch's": (
        r"#include <(spdlog|fmt)/|\bspdlog::|\bfmt::",
        CODE,
        ["src/base/log.cpp"],
    ),
    "messages go through the log": (
        r"#include <iostream>|std::c(out|err)\b|\bf?printf\s*\(",
        [path for path in PRODUCT if path.startswith("src/")],
        [],
    ),
    "Python stays in the bindings": (
        r"\bPyObject\b|\bpybind11\b|\bpy::|#include <Python\.h>|torch/csrc/(?!(autograd|profiler|distributed/c10d)/(?!python))",
        [path for path in PRODUCT if not path.startswith("bindings/")],
        [],
    ),
    "names of captured files": (
        r'\.pth"',
        PRODUCT,
        ["src/calls/capture_paths.cpp"],
    ),
    "folders are walked where files are named": (
        r"std::filesystem|\bopendir\b|\bmkdir\b",
        PRODUCT,
        ["src/calls/stored_calls.cpp", "src/base/run_folder.cpp", "src/record/recording_reader.cpp"],
    ),
    "one stopwatch": (
        r"\b(steady_clock|high_resolution_clock)\b|clock_gettime|getApproximateTime|synchronizeDevice|\bsynchronize\s*\(",
        PRODUCT,
        # The held clock is held to the stopwatch's. The simulated device has a clock of its own, and is what others wait
        # for.
        [
            "src/timing/stopwatch.cpp",
            "src/timing/stopwatch.h",
            "src/timing/tsc_clock.cpp",
            "src/timing/tsc_clock.h",
            "src/sim_device/",
        ],
    ),
    "one name for the interceptor's dispatch key": (
        r"TESTING_ONLY_GenericMode",
        CODE,
        ["src/tensor/dispatch_keys.h"],
    ),
    "operators are known by exact names in one table, not by parts of names": (
        r"\b(name|base|op|op_name|base_name)\.(find|rfind|starts_with|ends_with|compare|contains)\(",
        PRODUCT,
        [
            # The table, its base names and namespaces; torch's convention for names that end with an underscore.
            "src/hooks/op_traits.cpp",
            "src/hooks/written_inputs.cpp",
            # Namespaces and overloads, taken apart: no classes of operators.
            "src/base/op_filter.cpp",
            "src/calls/capture_paths.cpp",
            "src/calls/stored_calls.cpp",
            "src/runs/collective_results.cpp",
            "src/sim_device/kernels.cpp",
            "tools/run_op_from_data/name_rules.cpp",
            "tools/run_op_from_data/replay_frame.cpp",
            "tools/run_op_from_data/resolve.cpp",
            "tools/run_op_from_data/run_judge.cpp",
            # Names of variables and dtypes.
            "src/compare/metrics/tolerance.cpp",
            "src/fallback/redirect_options.cpp",
            "src/timing/call_details.cpp",
            "src/pth/",
        ],
    ),
    "copies to the CPU": (
        r"\.to\(\s*(c10::|at::)?kCPU|\.cpu\(\)|_to_copy::call",
        PRODUCT,
        [
            "src/calls/packed_values.cpp",
            "src/compare/distribution_test.cpp",
            "src/compare/metrics/tensor_diff.cpp",
            "src/fallback/",
            "src/observe/nonfinite.cpp",
            "src/record/jitter.cpp",
            "src/tensor/statistics.cpp",
        ],
    ),
    "tolerances": (
        r"\b[ar]tol\b",
        [path for path in PRODUCT if path.startswith("src/")],
        [
            "src/compare/metrics/tolerance.cpp",
            "src/compare/metrics/tolerance.h",
            "src/compare/metrics/error_kernels.cpp",
            "src/compare/metrics/error_sums.cpp",
            "src/compare/metrics/tensor_diff.cpp",
            "src/compare/judge.cpp",
            "src/hooks/op_traits.cpp",  # parameters of torch
        ],
    ),
}

# What each room may include of ours, besides itself. src/compare/metrics is the room compare/metrics.
MAY_INCLUDE = {
    "base": set(),
    "tensor": {"base"},
    "report": {"base", "tensor"},
    "pth": {"base", "tensor"},
    "autograd": {"base", "tensor"},
    "coverage": {"base", "tensor", "report"},
    "hooks": {"base", "tensor", "report", "autograd", "coverage"},
    "calls": {"base", "tensor", "report", "pth", "hooks"},
    "capture": {"base", "tensor", "report", "coverage", "hooks", "calls"},
    "observe": {"base", "tensor", "report", "coverage", "hooks", "calls"},
    "record": {"base", "tensor", "report", "coverage", "hooks", "calls"},
    "runs": {"base", "tensor", "report", "hooks", "record", "compare/metrics"},
    "timing": {"base", "tensor", "report", "autograd", "coverage", "hooks"},
    "memory": {"base", "tensor", "report", "coverage", "hooks", "timing"},
    "blackbox": {"base", "tensor", "report", "pth", "coverage", "hooks", "calls", "timing"},
    "fallback": {"base", "tensor", "report", "autograd", "coverage", "hooks", "timing"},
    "compare/metrics": {"base", "tensor", "hooks"},
    "compare/rerun": {"base", "tensor", "hooks", "calls", "fallback", "compare/metrics"},
    "compare": {
        "base",
        "tensor",
        "report",
        "coverage",
        "hooks",
        "calls",
        "timing",
        "fallback",
        "compare/metrics",
        "compare/rerun",
    },
    "sim_device": {"base", "tensor", "hooks"},
}
TOOL_ROOMS = set(MAY_INCLUDE) - {"sim_device"}
MAY_INCLUDE |= {
    "src": TOOL_ROOMS,  # op_tools.h and the register of tools
    "run_op_from_data": TOOL_ROOMS - {"capture", "observe"},
    "bindings": TOOL_ROOMS | {"run_op_from_data", "sim_device"},
}


def without_comments(text):
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def strangers(pattern, paths, allowed):
    """Lines with the pattern in files that may not have it."""
    found = []
    for path in paths:
        if any(path == one or (one.endswith("/") and path.startswith(one)) for one in allowed):
            continue
        lines = without_comments((ROOT / path).read_text()).splitlines()
        found += [f"{path}: {line.strip()}" for line in lines if re.search(pattern, line)]
    return found


@pytest.mark.parametrize("rule", RULES)
def test_lines_are_in_their_rooms(rule):
    assert strangers(*RULES[rule]) == []


@pytest.mark.parametrize("rule", RULES)
def test_files_with_a_permission_exist_and_use_it(rule):
    pattern, paths, allowed = RULES[rule]
    for one in allowed:
        if one.endswith("/"):
            continue  # a folder may be named before it is there
        assert one in paths, f"{one} is gone: take it out of the rule"
    assert not allowed or strangers(pattern, paths, []), "nothing uses this rule's pattern any more"


def room_of(path):
    folders = Path(path).parts[:-1]
    if folders[0] == "src" and len(folders) > 1:
        return "/".join(folders[1:])
    return folders[1] if folders[0] == "tools" else folders[0]


def includes_of(path):
    """(room, include) for each include of our own files, those of the same folder left out."""
    for include in re.findall(r'^#include "([^"]+)"', (ROOT / path).read_text(), re.MULTILINE):
        if "/" in include:
            yield room_of(("tools/" if include.startswith("run_op") else "src/") + include), include


def test_every_room_has_its_line():
    assert {room_of(path) for path in PRODUCT} == set(MAY_INCLUDE)


@pytest.mark.parametrize("room", MAY_INCLUDE)
def test_includes_point_down(room):
    wrong = [
        f"{path} includes {include}"
        for path in PRODUCT
        if room_of(path) == room
        for target, include in includes_of(path)
        if target != room and target not in MAY_INCLUDE[room]
    ]
    assert wrong == []


def test_rooms_form_no_circle():
    open_rooms = dict(MAY_INCLUDE)
    while leaves := [room for room, below in open_rooms.items() if not below & set(open_rooms)]:
        for room in leaves:
            del open_rooms[room]
    assert open_rooms == {}


def test_files_include_each_other_in_no_circle():
    files = {path: {"src/" + include for _, include in includes_of(path)} for path in PRODUCT if path.endswith(".h")}
    while leaves := [path for path, below in files.items() if not below & set(files)]:
        for path in leaves:
            del files[path]
    assert files == {}


def test_the_base_knows_no_torch():
    wrong = []
    for path in PRODUCT:
        if room_of(path) == "base":
            text = (ROOT / path).read_text()
            wrong += [f"{path}: {line}" for line in re.findall(r"#include <(?:ATen|c10|torch)/.*", text)]
    assert wrong == []


def test_the_version_of_torch_has_one_source():
    cmake = (ROOT / "cmake/FindOpToolsTorch.cmake").read_text()
    minimum = re.search(r"set\(OP_TOOLS_TORCH_MINIMUM ([\d.]+)\)", cmake)[1]
    assert f'dependencies = ["torch>={minimum}"]' in (ROOT / "pyproject.toml").read_text()
    assert f"torch of {minimum} or newer" in (ROOT / "README.md").read_text()
    readers = [cmake.replace(f"MINIMUM {minimum}", ""), (ROOT / "dev").read_text()]
    assert not any(minimum in text for text in readers), "a second place for the version"
