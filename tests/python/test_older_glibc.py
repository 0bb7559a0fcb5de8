"""Libraries and programs of the build load where torch's own wheels do: glibc 2.28, libstdc++ of gcc 8 (manylinux_2_28)."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The newest versions of symbols that manylinux_2_28 has.
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (8, 0, 0)}
BUILT = ("libop_tools.so", "libop_tools_sim_device.so", "libop_tools_replay_program.so", "run_op_from_data")


@pytest.fixture(scope="module", autouse=True)
def _for_older_glibc(build_dir):
    if "OP_TOOLS_OLDER_GLIBC:BOOL=ON" not in (build_dir / "CMakeCache.txt").read_text():
        pytest.skip("this build is for the machine's own glibc (OP_TOOLS_OLDER_GLIBC)")


@pytest.fixture(scope="module")
def binaries(build_dir):
    extensions = [*(ROOT / "op_tools").glob("_C.*.so"), *(ROOT / "op_tools").glob("_sim.*.so")]
    assert len(extensions) == 2
    return [*(build_dir / name for name in BUILT), *extensions]


def symbols(binary):
    """Lines of the dynamic symbol table."""
    return subprocess.run(
        ["objdump", "-T", str(binary)], capture_output=True, text=True, check=True
    ).stdout.splitlines()


def test_no_symbol_is_younger_than_the_oldest_system(binaries):
    needed = 0
    younger = []
    for binary in binaries:
        for line in symbols(binary):
            symbol = re.search(r"\*UND\*.*\((GLIBC|GLIBCXX|CXXABI|GCC)_([0-9.]+)\) +(\S+)", line)
            if not symbol:
                continue
            needed += 1
            library, version, name = symbol.groups()
            if tuple(map(int, version.split("."))) > NEWEST[library]:
                younger.append(f"{binary.name}: {name} of {library}_{version}")
    assert needed > 100
    assert younger == [], "give each an older form in cmake/older_glibc.cpp, or do without"


def test_the_older_forms_are_seen_by_nobody_else(binaries):
    source = (ROOT / "cmake" / "older_glibc.cpp").read_text()
    ours = {"stat", "fstat", "__libc_single_threaded", *re.findall(r"^OLDER\([^,]+, (\w+),", source, re.MULTILINE)}
    assert {"dlopen", "pow", "pthread_once"} < ours
    for binary in binaries:
        defined = {line.split()[-1] for line in symbols(binary) if "*UND*" not in line and len(line.split()) > 4}
        assert not defined & ours, binary
        assert not any(name.startswith("_ZSt8to_chars") for name in defined), binary
