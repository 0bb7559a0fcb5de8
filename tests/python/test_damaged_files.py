"""op_tools.load and load_call of damaged and cut-off files: op_tools.Error or a value, nothing else, never silence."""

import io
import json
import random
import shutil
import zipfile
from pathlib import Path

import pytest
import torch

import op_tools
from op_tools._work.show import show


def archive(pickle):
    """A .pth file with this pickle, its CRCs right."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as entries:
        entries.writestr("archive/data.pkl", pickle)
        entries.writestr("archive/version", "3\n")
    return file.getvalue()


@pytest.mark.parametrize(
    "pickle",
    [
        b"\x80\x02X\x02\x00\x00\x00\xff\xfe.",  # a text that is no UTF-8
        b"\x80\x02}X\x02\x00\x00\x00\xff\xfeK\x01s.",  # as a key
        b"\x80\x02}]K\x01s.",  # a list as a key
        b"\x80\x02}}K\x01s.",  # a dict as a key
    ],
)
def test_what_python_has_no_value_for_is_an_error_of_ours(pickle, tmp_path):
    (tmp_path / "input.pth").write_bytes(archive(pickle))
    with pytest.raises(op_tools.Error, match=r"input\.pth: damaged: "):
        op_tools.load(tmp_path / "input.pth")
    with pytest.raises(op_tools.Error, match=r"input\.pth"):
        op_tools.load_call(tmp_path)


def mutants(data, count, seed):
    """Copies of a .pth file whose pickle has other bytes, under right CRCs."""
    choose = random.Random(seed)
    with zipfile.ZipFile(io.BytesIO(data)) as entries:
        whole = [(info.filename, entries.read(info)) for info in entries.infolist()]
    for _ in range(count):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as entries:
            for name, content in whole:
                changed = bytearray(content)
                if name.endswith("data.pkl"):
                    for _ in range(choose.randint(1, 3)):
                        changed[choose.randrange(len(changed))] = choose.choice(
                            [choose.randrange(256), 0xFF, 0x5D, 0x7D]
                        )
                entries.writestr(name, bytes(changed))
        yield file.getvalue()


def test_mutants_are_read_or_are_errors_of_ours(tmp_path):
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(4, requires_grad=True)
    with op_tools.OpCapture(output_dir=tmp_path) as tool:
        torch.einsum("i,i->", x, x).backward()
        torch.rand(2, generator=generator)
        torch.nn.functional.pad(x, (1, 1), mode="constant")
        x[..., 1:3]
    refused = read = nameless = 0
    for number, file in enumerate(sorted(Path(tool.result().root).rglob("*.pth"))):
        data = file.read_bytes()
        for mutant in mutants(data, 60, number):
            file.write_bytes(mutant)
            for reader in (lambda: op_tools.load(file), lambda: op_tools.load_call(file.parent)):  # noqa: B023
                try:
                    reader()
                    read += 1
                except op_tools.Error as error:
                    nameless += str(file.parent) not in str(error)
                    refused += 1
        file.write_bytes(data)
        op_tools.load_call(file.parent)
    assert refused > 100 and read > 100 and nameless == 0


@pytest.mark.parametrize("layout", ["folders", "container"])
def test_a_call_that_was_cut_off_is_an_error(layout, tmp_path):
    with op_tools.OpCapture(ops="torch.exp", format=layout, output_dir=tmp_path) as tool:
        torch.exp(torch.ones(3, requires_grad=True)).sum().backward()
    root = Path(tool.result().root)
    if layout == "container":
        container = root / "calls.zip"
        with zipfile.ZipFile(container) as entries:
            inside = [(info.filename, entries.read(info)) for info in entries.infolist()]
        call = f"{container}!{inside[0][0].rpartition('/')[0]}"
        whole = container.read_bytes()
        container.write_bytes(whole[: whole.index(b"output.pth") - 30])
        with pytest.raises(op_tools.Error, match=r"cut off: meta\.json is missing"):
            op_tools.load_call(call)
        for cut in range(0, whole.index(b"PK\x01\x02"), 97):
            container.write_bytes(whole[:cut])
            with pytest.raises(op_tools.Error, match=r"calls\.zip"):
                op_tools.load_call(call)
    else:
        (folder,) = (file.parent for file in root.rglob("input.pth"))
        for missing in ("meta.json", "output.pth", "grad_inputs.pth", "grad_outputs.pth"):
            torn = tmp_path / f"without {missing}" / "torch.exp" / "1"
            shutil.copytree(folder, torn)
            (torn / missing).unlink()
            with pytest.raises(op_tools.Error, match=r"is missing"):
                op_tools.load_call(torn)
        assert op_tools.load_call(folder).grad_inputs is not None


def test_meta_data_that_are_no_json_are_an_error(tmp_path):
    with op_tools.OpCapture(ops="torch.exp", output_dir=tmp_path) as tool:
        torch.exp(torch.ones(3))
    (file,) = Path(tool.result().root).rglob("meta.json")
    for text in (b"", b"{", b"\xff\xfe", b'{"name": "\xff"}', b"[" * 100_000, b'{"a": ' * 5_000 + b"1" + b"}" * 5_000):
        file.write_bytes(text)
        with pytest.raises(op_tools.Error, match=r"meta\.json"):
            op_tools.load_call(file.parent)
        with pytest.raises(op_tools.Error):
            show(str(file.parent))
    file.write_text(json.dumps({"format": 99}))
    with pytest.raises(op_tools.Error, match="format 99"):
        op_tools.load_call(file.parent)


def test_paths_that_are_no_utf8(tmp_path):
    strange = tmp_path / "caf\udce9"
    with op_tools.OpCapture(ops="torch.exp", output_dir=tmp_path) as tool:
        torch.exp(torch.ones(3))
    Path(tool.result().root).rename(strange)
    (file,) = strange.rglob("input.pth")
    assert op_tools.load(file)["name"] == "torch.exp"
    assert op_tools.load_call(file.parent).name == "torch.exp"
    assert "1 calls of 1 ops" in show(str(strange))
    with pytest.raises(op_tools.Error, match="caf\udce9"):
        op_tools.load(strange / "nothing.pth")
    with pytest.raises(op_tools.Error, match="cannot be read"):
        op_tools.load(f"{file}\0.txt")
