"""Which file may use which part. A line in the wrong file is found here, by name, before a reviewer has to.

python tests/python/test_layering.py [CHECKOUT]     the folders, arrows, circles and imports of the Python package
"""

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import PYTHON
from folders import MAY_IMPORT, OPTIONAL, OPTIONAL_MAY_IMPORT, ROOMS

ROOT = Path(__file__).resolve().parents[2]
CODE = [
    path.relative_to(ROOT).as_posix()
    for folder in ("src", "bindings", "tools", "examples", "tests/cpp")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".cpp", ".h")
]
PRODUCT = [path for path in CODE if not path.startswith(("tests/", "examples/"))]

# rule: (pattern, where it is looked for, files that may have it: a name, or a folder that ends with "/")
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
        ["src/compat/interpreter_table.h"],  # used by bindings alone
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
        # The held clock is held to the stopwatch's. The simulated device has a clock of its own, and others wait
        # for. The writers of captures and of files have time limits.
        [
            "src/timing/stopwatch.cpp",
            "src/timing/stopwatch.h",
            "src/timing/tsc_clock.cpp",
            "src/timing/tsc_clock.h",
            "src/sim_device/",
            "src/base/disk_time.h",
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
            "src/hooks/batch_form.cpp",
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
            "src/fallback/",
            "src/observe/nonfinite.cpp",
            "src/record/jitter.cpp",
            "src/tensor/statistics.cpp",
            "src/tensor/tensor_bits.cpp",
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
            "src/compare/method_by_difference.cpp",
            "src/hooks/op_traits.cpp",  # parameters of torch
        ],
    ),
}

MAY_INCLUDE = {name: room.may_include for name, room in ROOMS.items()}


def without_comments(text):
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def strangers(pattern, paths, allowed):
    """Lines with the pattern in files that may not have it."""
    lines_with_pattern = []
    for path in paths:
        if any(path == one or (one.endswith("/") and path.startswith(one)) for one in allowed):
            continue
        lines = without_comments((ROOT / path).read_text()).splitlines()
        lines_with_pattern += [f"{path}: {line.strip()}" for line in lines if re.search(pattern, line)]
    return lines_with_pattern


@pytest.mark.parametrize("rule", RULES)
def test_lines_are_in_their_rooms(rule):
    assert strangers(*RULES[rule]) == []


@pytest.mark.parametrize("rule", RULES)
def test_files_with_a_permission_exist_and_use_it(rule):
    pattern, paths, allowed = RULES[rule]
    for path in allowed:
        if path.endswith("/"):
            continue  # a folder may be named before it is there
        assert path in paths, f"{path} is gone: take it out of the rule"
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
    assert f"torch of {minimum} or newer" in (ROOT / "README.md").read_text()
    files = "dev", "pyproject.toml", "cmake/build_backend.py"
    readers = [cmake.replace(f"MINIMUM {minimum}", ""), *((ROOT / file).read_text() for file in files)]
    assert not any(minimum in text for text in readers), "a second place for the version"


def test_versions_of_torch_are_compared_in_one_folder():
    """A gap between versions has a header in src/compat, or a function in op_tools/_torch/compat.py, which ask torch where they can."""
    conditions = r"^\s*#\s*(?:el)?if\b.*\bTORCH_VERSION"
    assert strangers(conditions, PRODUCT, ["src/compat/"]) == []
    python = [path.relative_to(ROOT).as_posix() for path in (ROOT / "op_tools").rglob("*.py")]
    comparison = r"torch\.(?:__version__|torch_version)[^\n]*[<>]=?"
    assert strangers(comparison, python, ["op_tools/_torch/compat.py"]) == []


# --- The Python package ------------------------------------------------------------------------------------------------

PACKAGE = "op_tools"
MADE = {"op_tools._C", "op_tools._sim", "op_tools._build_info"}  # by CMake
DOOR = "op_tools._base.core"  # to op_tools._C

# Modules that are imported inside functions, and why.
LATE = {
    "op_tools._base.core": "the command line asks for parts before the core is loaded",
    "op_tools._build_info": "of the build that fits torch, which is chosen first",
    "op_tools.sim_device": "its import adds a device to torch",
    "op_tools._base.own_command": "the interpreter's start-up runs before torch is there",
    "op_tools._tools.launch": "likewise",
    "op_tools._torch.hypotheses": "only where a compiled graph is wrong",
    "op_tools._torch.saved_graphs": "only where a graph is compiled",
    "torch.utils._device": "import op_tools loads no module of torch that torch does not",
    "torch._dynamo": "torch.compile's parts take half a second, which only compiling needs",
    "torch._inductor": "likewise",
    "torch.testing._internal": "needs packages that torch alone does not: expecttest",
}

# Files that import modules by name, and which.
BY_NAME = {
    "op_tools": "public names at their first use",
    "op_tools._commands.command_line": "the module of the command that is given, and that of its work",
    "op_tools._base.data_file": "tomllib, which is newer than the oldest Python; yaml",
    "op_tools._base.remote_files": "fsspec, which only URLs need",
    "op_tools._base.results": "pandas; the report of a result, which is made of all tools' results and stands above them",
    "op_tools._torch.backends": "backends of devices, which users name",
    "op_tools.formats._files": "numpy, h5py",
    "op_tools._commands.completion": "shtab",
    "op_tools._base.optional_parts": "parts that other packages bring, by their entry points",
}


@dataclass(frozen=True)
class Import:
    """An import in a file of the package."""

    by: str
    of: str
    line: int
    is_late: bool
    """Inside a function."""

    def __str__(self):
        return f"{self.by}:{self.line} imports {self.of}"


class Package:
    """A Python package in a folder of a checkout, as its sources have it."""

    def __init__(self, root, name=PACKAGE):
        self.root = root / name
        self.files = {self._name(path): path for path in sorted(self.root.rglob("*.py"))}
        self.files = {name: path for name, path in self.files.items() if name not in MADE}
        self.imports = [one for name in self.files for one in self._imports_of(name)]

    def _name(self, path):
        parts = path.relative_to(self.root.parent).with_suffix("").parts
        return ".".join(parts).removesuffix(".__init__")

    def folder(self, module):
        """ "" for the files beside the folders."""
        parts = self.files[module].relative_to(self.root).parts
        return parts[0] if len(parts) > 1 else ""

    def _imports_of(self, name):
        """Every import, those for type checkers as well; of packages of others only late ones count."""
        is_package = self.files[name].name == "__init__.py"
        tree = ast.parse(self.files[name].read_text())
        late = {
            id(inner)
            for outer in ast.walk(tree)
            if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef))
            for inner in ast.walk(outer)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                modules = [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom):
                above = name.split(".")[: -node.level or None] if node.level else []
                if node.level and is_package:
                    above = name.split(".")[: len(name.split(".")) - node.level + 1]
                module = ".".join([*above, *filter(None, [node.module])])
                inner = [f"{module}.{one.name}" for one in node.names]
                modules = sorted({one if one in self.files or one in MADE else module for one in inner})
            else:
                continue
            for module in modules:
                yield Import(name, module, node.lineno, id(node) in late)

    def arrows(self):
        """Folder -> the imports that leave it."""
        leaving = {self.folder(name): [] for name in self.files}
        for edge in self.imports:
            if edge.of in self.files and self.folder(edge.of) != self.folder(edge.by):
                leaving[self.folder(edge.by)].append(edge)
        return leaving

    def folder_graph(self):
        return {folder: {self.folder(one.of) for one in leaving} for folder, leaving in self.arrows().items()}

    def file_graph(self):
        graph = {name: set() for name in self.files}
        for edge in self.imports:
            if edge.of in self.files and edge.of != edge.by:
                graph[edge.by].add(edge.of)
        return graph

    def late(self):
        return [one for one in self.imports if one.is_late]


def circles(graph):
    """Groups of nodes that reach each other."""
    below = {}
    for node in graph:
        reached, waiting = set(), [node]
        while waiting:
            for other in graph[waiting.pop()] - reached:
                reached.add(other)
                waiting.append(other)
        below[node] = reached
    groups = {
        frozenset(other for other in below[node] if node in below[other]) for node in graph if node in below[node]
    }
    return sorted(sorted(group) for group in groups)


def floors(graph):
    """The nodes by how many stand below them; without circles."""
    height = {}

    def of(node):
        if node not in height:
            height[node] = max((of(other) + 1 for other in graph[node]), default=0)
        return height[node]

    for node in graph:
        of(node)
    return height


@pytest.fixture(scope="module")
def package():
    return Package(ROOT)


def test_every_folder_of_the_package_has_its_line(package):
    assert {package.folder(name) for name in package.files} - {""} == set(MAY_IMPORT)


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_imports_point_down(package, folder):
    leaving = package.arrows()[folder]
    assert [str(one) for one in leaving if package.folder(one.of) not in MAY_IMPORT[folder]] == []


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_what_a_folder_may_import_is_what_it_imports(package, folder):
    assert MAY_IMPORT[folder] == package.folder_graph()[folder]


def test_folders_import_each_other_in_no_circle(package):
    assert circles(package.folder_graph()) == []


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"a", "c"}, "c": set(), "d": {"d"}}) == [["a", "b"], ["d"]]


def test_python_files_import_each_other_in_no_circle(package):
    assert circles(package.file_graph()) == []


def test_imports_inside_functions_have_a_reason(package):
    def has_reason(edge):
        return any(edge.of == name or edge.of.startswith(f"{name}.") for name in LATE)

    assert [str(one) for one in package.late() if not has_reason(one)] == []
    assert {name for name in LATE if any(one.of.startswith(name) for one in package.late())} == set(LATE)


def test_modules_are_imported_by_name_in_few_places(package):
    named = [
        name
        for name, path in package.files.items()
        if re.search(r"import_module\(|__import__\(|\bentry\.load\(", path.read_text())
    ]
    assert set(named) == set(BY_NAME)


def test_the_optional_package_imports_public_names_and_stated_folders(package):
    optional = Package(ROOT / "compat", OPTIONAL)
    assert len(optional.files) > 8 and circles(optional.file_graph()) == [] and optional.late() == []
    of_ours = {edge.of for edge in optional.imports if edge.of.partition(".")[0] == PACKAGE}
    assert {module for module in of_ours if module != PACKAGE and module not in package.files} == set()
    assert {package.folder(module) for module in of_ours} == OPTIONAL_MAY_IMPORT


def test_op_tools_names_the_optional_package_in_messages_of_one_file(package):
    assert [str(edge) for edge in package.imports if edge.of.partition(".")[0] == OPTIONAL] == []
    named = {
        name
        for name, path in package.files.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value == OPTIONAL
    }
    assert named == set()


def test_the_core_has_one_door(package):
    assert {item.by for item in package.imports if item.of == "op_tools._C"} == {DOOR}


def test_public_names_are_for_type_checkers_and_for_the_run_time(package):
    """Once: the file for type checkers, which gives names on under the same name only, is read at run time."""
    tree = ast.parse(package.files[PACKAGE].with_suffix(".pyi").read_text())
    _, *imports = tree.body
    names = [alias for node in imports for alias in node.names]
    assert len(names) > 70 and all(alias.asname == alias.name for alias in names)
    assert {f"{PACKAGE}.{node.module}" for node in imports} <= package.files.keys()


_MEASURE = """
import sys, time
begin = time.perf_counter()
import torch
of_torch = time.perf_counter() - begin
import op_tools
print(of_torch, time.perf_counter() - begin - of_torch, *(name for name in sys.modules if name.startswith("op_tools")))
"""


def imported(root=ROOT):
    """Seconds of `import torch`, of `import op_tools` behind it, and the modules of ours that this loaded."""
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [PYTHON, "-c", _MEASURE], env=environment, cwd=root, capture_output=True, text=True, check=True
    )
    of_torch, of_ours, *modules = done.stdout.split()
    return float(of_torch), float(of_ours), modules


def table_of(root):
    """The package of a checkout in figures; the folder "" is the files beside the folders."""
    package = Package(root)
    graph = package.folder_graph()
    in_circles, late = circles(graph), package.late()
    heights = {} if in_circles else floors(graph)
    files = Counter(package.folder(name) for name in package.files)
    sizes = Counter()
    for name, path in package.files.items():
        sizes[package.folder(name)] += len(path.read_text().splitlines())
    lines = [f"{'folder':<14} {'floor':>5} {'files':>5} {'lines':>6}  imports"]
    for folder in sorted(graph, key=lambda one: (heights.get(one, 0), one)):
        floor = heights.get(folder, "-")
        below = ", ".join(sorted(graph[folder]))
        lines.append(f"{folder:<14} {floor:>5} {files[folder]:>5} {sizes[folder]:>6}  {below}")
    of_torch, of_ours, modules = min((imported(root) for _ in range(3)), key=lambda one: one[1])
    return [
        *lines,
        f"{len(graph)} folders, {sum(map(len, graph.values()))} arrows, {len(package.files)} files",
        f"circles: of folders {[len(one) for one in in_circles]}, of files {list(map(len, circles(package.file_graph())))}",
        f"imports inside functions: {len(late)}, of ours {sum(one.of in package.files for one in late)}",
        f"import op_tools: {len(modules)} modules, {of_ours * 1000:.0f} ms; import torch: {of_torch * 1000:.0f} ms",
    ]


if __name__ == "__main__":
    print("\n".join(table_of(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT)))  # noqa: T201
