"""The folders of src/ and op_tools/: which of the others the files of each may include or import. test_layering.py holds the files to it, and
tools/generate_declared.py makes the tables of docs/architecture.md of it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Room:
    """A folder of C++."""

    content: str
    may_include: frozenset[str] | set[str]
    """Rooms, besides itself."""


# src/compare/metrics is the room compare/metrics; src is the room of the files beside the folders.
ROOMS = {
    "base": Room(
        "no torch: error, log, options, filter, version, the check of the loaded torch, text table, run folder, fork guard, the host",
        set(),
    ),
    "compat": Room(
        "a header for each gap between the versions of torch, with its reason; no other folder compares versions",
        set(),
    ),
    "tensor": Room(
        "values, plain tensors, statistics, copies of tensor memory, dtype conversion, parallel loops, the guard of the dispatch keys",
        {"base", "compat"},
    ),
    "report": Room(
        "rows to CSV and JSON lines",
        {"base", "tensor"},
    ),
    "pth": Room(
        "the `.pth` reader and writer: pickle, zip, shared contents",
        {"base", "compat", "tensor"},
    ),
    "autograd": Room(
        "gradients of a call, backward passes, watching autograd nodes",
        {"base", "tensor"},
    ),
    "coverage": Room(
        "the account of a run: the calls examined, the calls not examined, and the verdict that this allows",
        {"base", "tensor", "report"},
    ),
    "hooks": Room(
        "calls, hooks, chain, scopes, both interceptors' core, tools, facts about operators",
        {"base", "compat", "tensor", "report", "autograd", "coverage"},
    ),
    "calls": Room(
        "a call in memory and on disk: snapshot, packed form, meta data, files, store, export",
        {"base", "tensor", "report", "pth", "coverage", "hooks"},
    ),
    "capture": Room(
        "OpCapture: the hook and the writer thread",
        {"base", "tensor", "report", "coverage", "hooks", "calls"},
    ),
    "observe": Room(
        "OpObserve and OpOverflowCheck",
        {"base", "tensor", "report", "coverage", "hooks", "calls"},
    ),
    "record": Room(
        "OpRecord: the hook, and the recording's file",
        {"base", "tensor", "report", "coverage", "hooks", "calls"},
    ),
    "runs": Room(
        "comparing recordings (`RunComparison`): which calls belong together, where runs part",
        {"base", "tensor", "report", "hooks", "record", "compare/metrics"},
    ),
    "timing": Room(
        "OpTimeMeasure; the stopwatch, the only clock and device synchronization",
        {"base", "tensor", "report", "autograd", "coverage", "hooks"},
    ),
    "memory": Room(
        "OpMemoryCheck: the table of places and blocks; the CPU allocator that it listens to is in `src/tensor`",
        {"base", "tensor", "report", "coverage", "hooks", "timing"},
    ),
    "blackbox": Room(
        "OpBlackBox: the hook, its file, and the reader of such files",
        {"base", "compat", "tensor", "report", "pth", "coverage", "hooks", "calls", "timing"},
    ),
    "fallback": Room(
        "OpFallback and OpDtypeCast; moving a call to another device or dtype",
        {"base", "compat", "tensor", "report", "autograd", "coverage", "hooks", "timing"},
    ),
    "compare/metrics": Room(
        "errors of a tensor, tolerances, the limits by which a result is judged",
        {"base", "tensor", "hooks"},
    ),
    "compare/rerun": Room(
        "running a call again: on the CPU, in float64, backward",
        {"base", "tensor", "hooks", "calls", "timing", "fallback", "compare/metrics"},
    ),
    "invariance": Room(
        "OpInvariance: has a call the same bits when it is run again, in other memory, in another batch?",
        {
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
            "compare",
        },
    ),
    "compare": Room(
        "OpAutoCompare: verdict, report",
        {
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
    ),
    "sim_device": Room(
        "the [simulated device](sim_device.md): a library of its own that nothing else links",
        {"base", "compat", "tensor", "hooks"},
    ),
}
_OF_TOOLS = set(ROOMS) - {"sim_device"}
ROOMS |= {
    "src": Room("the header of the C++ library, `op_tools.h`, and the register of tools", _OF_TOOLS),
    "run_op_from_data": Room(
        "replay: a part without Python, and the program around it", _OF_TOOLS - {"capture", "observe"}
    ),
    "bindings": Room(
        "pybind11: the only code that uses Python objects or the GIL", _OF_TOOLS | {"run_op_from_data", "sim_device"}
    ),
}

# The folders of ours that the files of each folder may import, besides those of the same folder. The files beside the folders are doors,
# which nothing in a folder imports.
MAY_IMPORT = {
    "_base": set(),
    "sim_device": set(),
    "_torch": {"_base"},
    "_as_cuda": {"_base", "_torch", "sim_device"},
    "formats": {"_base", "_torch"},
    "repro": {"_base", "_torch"},
    "_tools": {"_base", "_torch", "_as_cuda"},
    "startup": {"_base", "_tools"},
    "_modules": {"_base", "_torch"},
    "_runs": {"_base", "formats", "_torch", "_tools", "_modules"},
    "_bisect": {"_base", "_tools"},
    "_conformance": {"_base", "_torch", "sim_device", "_tools"},
    "analyse": {"_base", "_torch", "_tools", "_conformance"},
    "sim_graph": set(),
    "_reduce": {"_base", "_torch", "_tools", "_bisect", "_conformance"},
    "_report": {"_base", "_tools", "_modules", "_runs", "_conformance"},
    "integrations": {"_base", "_tools", "_report"},
    "_diagnose": {"_base", "_bisect", "_report", "_tools"},
}
MAY_IMPORT["_commands"] = {"_base", "_as_cuda", "_bisect", "_runs", "analyse", "_conformance"}
MAY_IMPORT["_work"] = set(MAY_IMPORT) - {"startup", "integrations", "_modules", "sim_graph"}

# The package beside it, of parts that few users need, imports the public names of op_tools ("") and files of these folders. op_tools
# imports nothing of it.
OPTIONAL = "op_tools_compat"
OPTIONAL_MAY_IMPORT = {"", "_base", "_commands", "_tools", "formats"}
