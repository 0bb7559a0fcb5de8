"""Files that `cmake --install` and pip put on a machine work from there: programs, libraries, the CMake package, the wheel."""

import ast
import importlib.util
import json
import os
import re
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch
from conftest import PYTHON
from test_layering import imported

ROOT = Path(__file__).resolve().parents[2]


def run(*command, **options):
    """The output of a command that must succeed."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def libraries(binary):
    """The libraries that the loader finds for a binary, name -> path."""
    paths = {}
    for line in run("ldd", binary, env={**os.environ, "LD_LIBRARY_PATH": ""}).splitlines():
        name, _, path = line.strip().partition(" => ")
        paths[name.split()[0]] = path.split(" (")[0]
    return paths


@pytest.fixture(scope="session")
def prefix(build_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", build_dir, "--prefix", folder)
    return folder


@pytest.mark.parametrize("binary", ["bin/run_op_from_data", "lib/libop_tools.so", "lib/libop_tools_sim_device.so"])
def test_installed_binaries_need_no_python_and_find_torch(prefix, binary):
    loaded = libraries(prefix / binary)
    assert not [name for name in loaded if "python" in name]
    assert loaded["libtorch_cpu.so"].startswith(str(Path(torch.__file__).parent))
    assert "not found" not in loaded.values()
    assert not [name for name in loaded if "spdlog" in name or "fmt" in name]


def test_installed_program_uses_the_installed_library(prefix):
    assert run(prefix / "bin" / "run_op_from_data", "--help").startswith("Runs captured operator calls")
    loaded = libraries(prefix / "lib" / "libop_tools_replay_program.so")  # by the program itself
    assert Path(loaded["libop_tools.so"]).resolve() == prefix / "lib" / "libop_tools.so"


def test_every_installed_header_comes_with_what_it_includes(prefix):
    include = prefix / "include" / "op_tools"
    for header in include.rglob("*.h"):
        for line in header.read_text().splitlines():
            if line.startswith('#include "'):
                assert (include / line.split('"')[1]).exists(), f"{header}: {line}"


def test_only_headers_that_a_program_reaches_are_installed(prefix):
    include = prefix / "include" / "op_tools"
    installed = {path.relative_to(include).as_posix() for path in include.rglob("*.h")}
    assert {"op_tools.h", "hooks/hook.h", "sim_device/sim_device.h"} <= installed
    assert not [name for name in installed if name.startswith("pth/")]
    assert "sim_device/device.h" not in installed
    others = r"#include <(nlohmann|spdlog|fmt|CLI|libdeflate|xxhash|zlib|pybind11|Python)"
    assert not [name for name in installed if re.search(others, (include / name).read_text())]


def build_consumer(found_in, build):
    run(
        "cmake",
        "-G",
        "Ninja",
        "-S",
        ROOT / "tests" / "consumer",
        "-B",
        build,
        f"-DCMAKE_PREFIX_PATH={found_in}",
        f"-DPython_EXECUTABLE={PYTHON}",
    )
    run("cmake", "--build", build)
    return build / "consumer"


@pytest.fixture(scope="session")
def consumer(prefix, tmp_path_factory):
    return build_consumer(prefix, tmp_path_factory.mktemp("consumer"))


def test_a_program_outside_builds_against_the_build_folder(build_dir, tmp_path):
    assert "aten::add.Tensor admitted" in run(build_consumer(build_dir, tmp_path), "add")


def test_a_program_outside_builds_against_the_installed_package(consumer):
    minor = ".".join(torch.__version__.split(".")[:2])
    output = run(consumer, "add")
    assert f"built with torch {minor}." in output
    assert "aten::add.Tensor admitted" in output
    assert "left out" in run(consumer, "mul")


def test_a_program_without_python_captures_with_a_hook_of_its_own_and_the_capture_replays(consumer, prefix, tmp_path):
    assert not [name for name in libraries(consumer) if "python" in name]
    assert "1 calls" in run(consumer, "mm", tmp_path).splitlines()
    report = tmp_path / "report.json"
    run(prefix / "bin/run_op_from_data", tmp_path, "--acc_check", "--json", report)
    (call,) = json.loads(report.read_text())["calls"]
    assert (call["name"], call["status"], call["bit_equal"]) == ("aten::mm", "agrees", True)


def strange_symbols(library):
    """The symbols that it exports and should not."""
    lines = run("nm", "-DC", "--defined-only", library).splitlines()
    symbols = [line.split(" ", 2)[1:] for line in lines]
    # Weak symbols are of inline functions that the compiler shares: of the standard library's and torch's, too.
    linkers = ("__bss_start", "_edata", "_end")
    strangers = [
        name for kind, name in symbols if kind not in "WVu" and "op_tools::" not in name and name not in linkers
    ]
    inner = re.compile(r"\b(spdlog|fmt|nlohmann|CLI)::|op_tools::(RecordWriter|ZipDirectory|OpTable|\(anonymous)")
    assert any("op_tools::HookScope::enter()" in name for _, name in symbols)
    return strangers + [name for _, name in symbols if inner.search(name)]


def test_only_public_symbols_are_visible(prefix):
    assert strange_symbols(prefix / "lib/libop_tools.so") == []


def test_an_error_of_the_library_is_caught_outside(consumer):
    done = subprocess.run([consumer, "("], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("the argument: '(' is no valid regular expression")


def configure_with_torch(version, source, folder, *options):
    """The line of CMake when the torch that it finds says that it is of this version."""
    root = folder / "torch"
    header = root / "include" / "torch" / "headeronly" / "version.h"
    header.parent.mkdir(parents=True)
    (root / "include" / "torch" / "csrc" / "api" / "include").mkdir(parents=True)
    (root / "include" / "torch" / "library.h").touch()
    parts = zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True)
    header.write_text("".join(f"#define TORCH_VERSION_{part} {number}\n" for part, number in parts))
    (root / "lib").symlink_to(Path(torch.__file__).parent / "lib")
    command = ["cmake", "-G", "Ninja", "-S", source, "-B", folder / "build", f"-DOP_TOOLS_TORCH_ROOT={root}", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, " ".join(done.stderr.split())


def test_another_torch_is_refused_with_both_versions(prefix, tmp_path):
    consumer = ROOT / "tests" / "consumer"
    status, message = configure_with_torch("9.9.0", consumer, tmp_path, f"-DCMAKE_PREFIX_PATH={prefix}")
    assert status != 0
    assert f"was built with torch {torch.__version__.split('+')[0]}" in message
    assert "found 9.9.0" in message


def test_building_with_a_torch_that_is_too_old_is_refused(tmp_path):
    status, message = configure_with_torch("2.4.1", ROOT, tmp_path, f"-DPython_EXECUTABLE={PYTHON}")
    assert status != 0
    assert "op_tools needs torch >= " in message and f"; {tmp_path / 'torch'} holds 2.4.1" in message


def test_building_with_a_torch_that_nobody_has_tried_says_so(tmp_path):
    # Without the Python module: its version file stands in the source tree, and this is not the torch that it was built with.
    options = f"-DPython_EXECUTABLE={PYTHON}", "-DOP_TOOLS_BUILD_PYTHON=OFF"
    status, message = configure_with_torch("2.99.0", ROOT, tmp_path, *options)
    assert status == 0, message
    assert "op_tools was last tried with torch " in message and "; this is 2.99.0" in message


@pytest.fixture(scope="session")
def wheel(build_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    run(PYTHON, ROOT / "cmake" / "make_wheel.py", build_dir, folder)
    (path,) = folder.glob("op_tools-*.whl")
    return path


def installed(wheel, prefix):
    """The package and the scripts of a site-packages with the wheel and nothing else of ours."""
    run(PYTHON, "-m", "pip", "install", "--no-deps", "--no-index", "--prefix", prefix, wheel)
    (package,) = prefix.rglob("site-packages/op_tools")
    return package, prefix / "bin"


@pytest.fixture(scope="session")
def installed_wheel(wheel):
    """The package, the scripts, and the wheel's file names."""
    with zipfile.ZipFile(wheel) as archive:
        return *installed(wheel, wheel.parent / "prefix"), archive.namelist()


def test_the_wheel_holds_everything_once_and_nothing_of_the_source_tree(installed_wheel):
    _, _, names = installed_wheel
    assert len(names) == len(set(names))
    for module in ("_C", "_sim"):
        extensions = [name for name in names if name.startswith(f"op_tools/{module}.")]
        assert len([name for name in extensions if name.endswith(".so")]) == 1
    for name in (
        "op_tools/lib/libop_tools.so",
        "op_tools/lib/libop_tools_replay_program.so",
        "op_tools/lib/libop_tools_sim_device.so",
        "op_tools/_build_info.py",
        "op_tools/include/op_tools/op_tools.h",
    ):
        assert name in names
    assert "op_tools/lib/cmake/op_tools/op_tools-config.cmake" in names
    assert [name for name in names if name.endswith("scripts/run_op_from_data")]
    assert "op_tools/bin/run_op_from_data" in names
    assert not [name for name in names if name.startswith(("tests/", "src/", "compat/")) or "__pycache__" in name]
    assert not [name for name in names if "op_tools_compat" in name or name.startswith("op_tools/compat/")]


def test_the_wheel_imports_from_anywhere(installed_wheel, tmp_path):
    package, _, _ = installed_wheel
    code = (
        "import op_tools, op_tools._C, sys; print(op_tools.__file__); print(op_tools._C.__file__)\n"
        "import op_tools.sim_device, torch; assert torch.ones(2, device='sim').sum().item() == 2"
    )
    output = run(PYTHON, "-c", code, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(package.parent)}).splitlines()
    assert [Path(line).parent for line in output] == [package, package]


def test_the_wheels_program_runs_with_the_torch_that_python_finds(installed_wheel):
    package, scripts, _ = installed_wheel
    # torch stands in another folder than the package here, as a vendor's below a virtual environment.
    assert not (package.parent / "torch").exists()
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    assert run(scripts / "run_op_from_data", "--help", env=environment).startswith("Runs captured operator calls")
    loaded = libraries(package / "lib" / "libop_tools_replay_program.so")  # which the program loads
    assert Path(loaded["libop_tools.so"]).resolve() == package / "lib" / "libop_tools.so"
    assert not [name for name in loaded if "python" in name]


def test_the_wheels_program_says_which_python_has_no_torch(installed_wheel):
    _, scripts, _ = installed_wheel
    command = [PYTHON, "-S", "-E", scripts / "run_op_from_data", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"run_op_from_data: {PYTHON} has no torch: install it for this Python\n"


def test_the_wheel_says_for_which_torch_it_is(installed_wheel):
    package, _, _ = installed_wheel
    minor = ".".join(torch.__version__.split(".")[:2])
    (metadata,) = package.parent.glob("op_tools-*.dist-info/METADATA")
    lines = metadata.read_text().splitlines()
    assert f"Requires-Dist: torch=={minor}.*" in lines
    (version,) = [line for line in lines if line.startswith("Version: ")]
    assert version.endswith(f"+torch{minor}")


def test_a_wheel_for_several_torches_takes_the_build_that_fits(wheel, tmp_path):
    major, minor = map(int, torch.__version__.split(".")[:2])
    this, other = f"{major}.{minor}", f"{major}.{minor + 1}"
    # The other's is this torch's build with another version written in, and without what takes long to pack.
    large = re.compile(r"/(_C\.[^/]*\.so|include/|lib/libop_tools(_sim_device)?\.so)")
    second = tmp_path / wheel.name.replace(f"+torch{this}", f"+torch{other}")
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(second, "w") as copy:
        for entry in source.infolist():
            if large.search(entry.filename):
                continue
            content = source.read(entry)
            if entry.filename == "op_tools/_build_info.py":
                content = content.replace(f'"{this}.'.encode(), f'"{other}.'.encode())
            entry.filename = entry.filename.replace(f"+torch{this}", f"+torch{other}")
            copy.writestr(entry, content)
    run(PYTHON, ROOT / "cmake" / "combine_wheels.py", second, wheel, tmp_path / "dist")
    (combined,) = (tmp_path / "dist").glob("op_tools-*.whl")
    assert "+torch" not in combined.name
    package, scripts = installed(combined, tmp_path / "prefix")
    (metadata,) = package.parent.glob("op_tools-*.dist-info/METADATA")
    assert f"Requires-Dist: torch>={this},<{major}.{minor + 2}" in metadata.read_text().splitlines()

    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    code = "import op_tools, op_tools._C, op_tools.sim_device; print(op_tools._C.__file__)"
    file = run(PYTHON, "-c", code, cwd=tmp_path, env=environment)
    own = package / f"torch_{major}_{minor}"
    assert Path(file.strip()).parent == own
    assert run(scripts / "run_op_from_data", "--help", env=environment).startswith("Runs captured operator calls")

    older = f"{major}.{minor - 1}"
    own.rename(package / f"torch_{major}_{minor - 1}")  # now there is none for this torch
    for command, status in (([PYTHON, "-c", code], 1), ([PYTHON, "-m", "op_tools", "ops"], 2)):
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        last = done.stderr.splitlines()[-1]
        assert done.returncode == status
        assert f"op_tools was built with torch {other}." in last and f"(its wheel is for {older}, {other})" in last
        assert f"pip install 'torch=={other}.*'" in last


def test_the_package_alone_loads_what_a_capture_needs():
    _, _, modules = imported()
    folders = {name.split(".")[1] for name in modules if "." in name}
    assert folders <= {"_C", "_base", "_build_info", "_tools", "_torch"}
    assert len(modules) <= 40
    tools = {name for name in modules if name.startswith("op_tools._tools.")}
    assert tools == {f"op_tools._tools.{name}" for name in ("children", "decorate", "tool", "training_steps")}


# --- pip, with the source ------------------------------------------------------------------------------------------------

HIDES_TORCH = """
import sys
sys.path[:] = [path for path in sys.path if "site-packages" not in path]
"""


def backend(code, tmp_path, **environment):
    """Runs code with cmake/build_backend.py, in an environment as pip makes it for a build: a sitecustomize on PYTHONPATH
    hides what is installed. scikit-build-core's hooks are not called."""
    hidden = tmp_path / "overlay"
    package = hidden / "scikit_build_core"
    package.mkdir(parents=True)
    (hidden / "sitecustomize.py").write_text(HIDES_TORCH)
    (package / "__init__.py").touch()
    requires = [f"get_requires_for_build_{kind}" for kind in ("editable", "sdist", "wheel")]
    (package / "build.py").write_text(
        "\n".join(
            f"def {name}(*settings): return settings"
            for name in ["build_sdist", "build_wheel", "build_editable", "prepare_metadata_for_build_wheel", *requires]
        )
    )
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [PYTHON, "-c", f"import sys; sys.path.insert(0, {str(ROOT / 'cmake')!r})\n{code}"],
        env={**clean, "PYTHONPATH": str(hidden), "PYTHONNOUSERSITE": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )


def test_an_isolated_build_finds_the_torch_that_is_installed(tmp_path):
    code = (
        "import importlib.util; assert importlib.util.find_spec('torch') is None\n"
        "import build_backend as b; print(b.build_wheel('.', None)[1][b.TORCH_ROOT])\n"
        "print(b.dynamic_metadata('version'), b.dynamic_metadata('dependencies'))"
    )
    done = backend(code, tmp_path)
    assert done.returncode == 0, done.stderr
    minor = ".".join(torch.__version__.split(".")[:2])
    folder, metadata = done.stdout.splitlines()
    assert Path(folder) == Path(torch.__file__).parent
    assert metadata.endswith(f"+torch{minor} ['torch=={minor}.*']")


def test_a_build_without_torch_says_the_commands_that_work(tmp_path):
    code = "import build_backend as b; b._pythons = lambda: []; b.build_wheel('.', None)"
    done = backend(code, tmp_path)
    assert done.returncode != 0
    assert "has no torch" in done.stderr and "\n    pip install torch\n    pip install .\n" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_python_without_the_gil_is_refused(tmp_path):
    code = (
        "import sysconfig, build_backend as b\n"
        "sysconfig.get_config_var = lambda name: int(name == 'Py_GIL_DISABLED')\n"
        "b.build_wheel('.', None)"
    )
    done = backend(code, tmp_path)
    assert done.returncode == 1
    assert "is a free-threaded Python" in done.stderr and "with the GIL" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_source_distribution_is_for_no_torch(tmp_path):
    code = (
        "import build_backend as b; b.build_sdist('.', None)\n"
        "print(b.dynamic_metadata('version'), b.dynamic_metadata('dependencies'))"
    )
    version, dependencies = backend(code, tmp_path).stdout.split(" ", 1)
    assert re.fullmatch(r"[0-9.]+", version)
    assert re.fullmatch(r"\['torch>=[0-9.]+'\]", dependencies.strip())


def test_warnings_are_no_errors_for_users():
    cmake = (ROOT / "CMakeLists.txt").read_text()
    assert re.search(r"option\(OP_TOOLS_WERROR .* OFF\)", cmake)
    presets = json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
    (base,) = [preset for preset in presets if preset["name"] == "base"]
    assert base["cacheVariables"]["OP_TOOLS_WERROR"] == "ON"


def imported_names(path):
    """(module, name) of what a file imports from the package."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("op_tools"):
            yield from ((node.module, alias.name) for alias in node.names)


def test_the_names_that_proofs_and_benchmarks_import_exist():
    """They run by hand: a name that is gone would be seen by nobody."""
    files = [*(ROOT / "tests" / "proofs").glob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    wanted = sorted({pair for path in files for pair in imported_names(path)})
    assert len(wanted) > 50
    gone = []
    for module, name in wanted:
        loaded = importlib.import_module(module)
        if not hasattr(loaded, name) and importlib.util.find_spec(f"{module}.{name}") is None:
            gone.append(f"{module}.{name}")
    assert gone == []
