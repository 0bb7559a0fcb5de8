"""The table of operators' traits against the operators and functions that torch has.

tests/data/op_traits.txt lists which of them a row of src/hooks/op_traits.cpp (or an undeclared write of
written_inputs.cpp) matches, so that a change of the table shows all that it changes. Written anew by
`./dev run python tests/python/test_op_traits.py`.
"""

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import torch
import torch.nn.functional as F

LISTED = Path(__file__).resolve().parents[1] / "data" / "op_traits.txt"
# Python's own forms, which torch does not list.
OF_PYTHON = {"__set__", "__setitem__"}
# Registered when torch.distributed.fsdp is imported.
OF_FSDP = {"all_gather_copy_in"}
# Named tensors, devices and storages of older versions of torch.
OF_OTHER_VERSIONS = {"has_names", "names", "is_hpu", "_from_file"}


def operators_and_functions() -> list[str]:
    """Names as op_tools reports them, operators without their overloads."""
    operators = {name.split(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    functions = torch.overrides.get_overridable_functions().values()
    named = {torch.overrides.resolve_name(function) for group in functions for function in group}
    return sorted(operators | {name for name in named if name})


def matches() -> list[str]:
    """`name: trait, trait` for each name that anything is known of."""
    from op_tools import _C

    traits = defaultdict(list)
    for trait, _, names in _C.op_families():
        for name in names.split():
            if trait not in traits[name]:
                traits[name].append(trait)
    lines = []
    for name in operators_and_functions():
        known = list(traits.get(_C.base_name(name), []))
        if writes := _C.undeclared_writes(name):
            known.append("writes " + writes)
        if known:
            lines.append(f"{name}: {', '.join(known)}")
    return lines


def in_a_process_of_its_own() -> list[str]:
    """Other tests import modules that register more operators."""
    done = subprocess.run([sys.executable, __file__, "--print"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_what_the_table_matches_is_what_was_looked_at():
    header, *lines = LISTED.read_text().splitlines()
    present = in_a_process_of_its_own()
    if f"torch {torch.__version__.split('+')[0]}" not in header:
        # Another torch has other operators: those of both must match the same rows.
        both = set(operators_and_functions()) & {line.split(": ")[0] for line in lines}
        present, lines = ([line for line in some if line.split(": ")[0] in both] for some in (present, lines))
    assert present == lines, f"look at each difference, then ./dev run python {__file__}"


def test_every_name_in_the_table_is_one_of_torchs():
    from op_tools import _C

    of_scripts = {schema.name.split("::")[-1] for schema in torch._C._jit_get_all_schemas()}
    known = {_C.base_name(name) for name in operators_and_functions()} | of_scripts
    known |= OF_PYTHON | OF_FSDP | OF_OTHER_VERSIONS
    shared = torch.distributed.distributed_c10d
    places = (torch, torch.Tensor, F, torch.functional, torch.linalg, torch.fft, torch._C, torch._C._nn, shared)
    unknown = {
        name
        for _, _, names in _C.op_families()
        for name in names.split()
        if name not in known and not any(hasattr(place, name) for place in places)
    }
    assert unknown == set()


def test_no_name_stands_twice_in_a_trait_and_every_row_has_a_reason():
    from op_tools import _C

    seen = set()
    for trait, why, names in _C.op_families():
        assert trait and why
        for name in names.split():
            assert (trait, name) not in seen
            seen.add((trait, name))


def test_a_part_of_a_name_matches_nothing():
    from op_tools import _C

    names = {name for _, _, names in _C.op_families() for name in names.split()}
    for accident in (
        "poisson_nll_loss",
        "polygamma",
        "upsample_bilinear2d",
        "_convert_indices_from_coo_to_csr",
        "__rand__",
    ):
        assert accident not in names


if __name__ == "__main__":
    present = matches()
    if "--print" in sys.argv:
        sys.stdout.write("\n".join([*present, ""]))
    else:
        header = f"# Which operators and functions of torch {torch.__version__} the rows of op_traits.cpp match."
        LISTED.write_text("\n".join([header, *present, ""]))
