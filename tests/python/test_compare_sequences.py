"""A trainer's forward pass over whole sequences against an engine's prefill and decode steps: tokens are comparison again, and the operator that
gives a token other bits is named."""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import launched

import op_tools
import op_tools.sim_device as sim
from op_tools.__main__ import main
from op_tools._base.declared_rows import CallVerdict
from op_tools._runs import sequence_parts
from op_tools._runs.token_rows import TokenRun, matched_tokens

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def decoder():
    spec = importlib.util.spec_from_file_location("decoder", ROOT / "examples" / "decoder.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def single_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    sim.faults_clear()


class Rounded(torch.nn.Linear):
    """A linear layer whose bits do not depend on the batch."""

    def forward(self, x):
        return (x.unsqueeze(-2) * self.weight).sum(-1) + self.bias


def small(decoder, *, rounded=True, eager=False, dtype=torch.float32):
    torch.manual_seed(0)
    model = decoder.Decoder(16, eager=eager, layers=1, heads=2)
    if rounded:
        for module in list(model.modules()):
            for name, child in module.named_children():
                if isinstance(child, torch.nn.Linear):
                    replacement = Rounded(child.in_features, child.out_features)
                    replacement.load_state_dict(child.state_dict())
                    setattr(module, name, replacement)
    return model.to(dtype)


def tokens_of(batch=3, length=9):
    torch.manual_seed(1)
    return torch.randint(64, (batch, length))


def recorded(folder, run, *, capture=False, **options):
    with torch.no_grad():
        if capture:
            with (
                op_tools.OpCapture(output_dir=f"{folder}_capture"),
                op_tools.OpRecord(output_dir=folder, row_hashes=True),
            ):
                run()
        else:
            with op_tools.OpRecord(output_dir=folder, row_hashes=True, **options):
                run()
    return folder


def both(tmp_path, decoder, model, tokens, order=None, batches=1, capture=False):
    """Recordings of both sides; the engine has the requests in this order."""
    train = recorded(tmp_path / "train", lambda: decoder.train(model, tokens), capture=capture)
    mixed = tokens if order is None else tokens[order]
    serve = recorded(tmp_path / "serve", lambda: decoder.serve(model, mixed, 4, batches), capture=capture)
    return train, serve


def test_tokens_are_found_in_other_batches_and_in_another_order(tmp_path, decoder):
    model, tokens = small(decoder, rounded=False), tokens_of()
    tokens[:, :2] = 7  # the same beginning, and the same token at two places
    train, serve = both(tmp_path, decoder, model, tokens, order=[2, 0, 1], batches=2)
    a, b = (TokenRun(op_tools.read_recording(next(side.glob("*.oprec"))).calls._core, "run") for side in (train, serve))
    match = matched_tokens(a, b)
    assert len(a.tokens) == len(b.tokens) == 24
    assert sorted(match.tolist()) == list(range(24))
    kinds = torch.tensor(a.tokens.kind)[match]
    assert torch.equal(kinds, torch.tensor(b.tokens.kind))
    # A token at a place that no other sequence shares.
    places = {(a.tokens.sequence[one], a.tokens.position[one]) for one in match.tolist()}
    assert len(places) == 24
    decoded = [
        index
        for index, forward in enumerate(b.tokens.forward)
        if b.tokens.position[index] == 0 and forward not in (0, 5)
    ]
    positions = [a.tokens.position[match[index]] for index in decoded]
    assert set(positions) == {4, 5, 6, 7}


class Plain(torch.nn.Module):
    """Without attention: no result depends on another token."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm = torch.nn.Embedding(16, 8), torch.nn.LayerNorm(8)
        self.up = Rounded(8, 8)

    def forward(self, tokens):
        return torch.relu(self.up(self.norm(self.embed(tokens) * 3)))


def test_what_keeps_its_bits_agrees_for_each_token(tmp_path):
    model, tokens = Plain(), tokens_of() % 16
    train = recorded(tmp_path / "train", lambda: model(tokens))
    serve = recorded(
        tmp_path / "serve", lambda: [model(tokens[order, at : at + 3]) for order in ([2, 0], [1]) for at in (0, 3, 6)]
    )
    comparison = op_tools.compare_sequences(train, serve)
    assert comparison.matched == comparison.tokens_a == comparison.tokens_b == 27
    assert comparison.forwards == (1, 6)
    assert len(comparison.rows) >= 6
    assert {row.tokens for row in comparison.rows} == {27}
    assert comparison.first is None, comparison.table()
    assert comparison.verdict.value == "agrees", comparison.unseen
    assert f"{len(comparison.rows)} results have the same bits" in comparison.table()


def pieces(model, tokens):
    for at in range(0, tokens.shape[1], 3):
        model(tokens[:, at : at + 3])


@pytest.mark.parametrize(
    ("train", "serve", "alone", "ends"),
    [
        pytest.param(slice(9), slice(8), (0, 0), 1, id="the engine computes nothing with the last token"),
        pytest.param(slice(9), slice(7), (2, 0), 0, id="two at the end are missing"),
        pytest.param(slice(9), slice(1, 9), (1, 0), 0, id="the first is missing"),
        pytest.param(slice(8), slice(9), (0, 1), 0, id="the engine has more"),
    ],
)
def test_tokens_of_a_single_run_are_not_judged_but_for_the_last_that_the_engine_gives(
    tmp_path, train, serve, alone, ends
):
    model, tokens = Plain(), torch.arange(9).view(1, 9)
    of_a = recorded(tmp_path / "train", lambda: model(tokens[:, train]))
    of_b = recorded(tmp_path / "serve", lambda: pieces(model, tokens[:, serve]))
    comparison = op_tools.compare_sequences(of_a, of_b)
    assert comparison.first is None, comparison.table()
    assert (comparison.tokens_alone, comparison.ends) == (alone, ends)
    assert comparison.verdict.value == ("not judged" if any(alone) else "agrees"), comparison.unseen
    if ends:
        assert f"not compared: {ends} tokens of A" in comparison.table()
    else:
        assert f"NOT JUDGED: {alone[0]} tokens are in A alone, {alone[1]} in B alone" in comparison.table()


def test_results_whose_rows_are_of_no_known_tokens_are_not_judged(tmp_path):
    model, tokens = Plain(), tokens_of() % 16
    turned = lambda some: model(some).movedim(1, 2).contiguous() * 2  # noqa: E731  (the tokens are the last dimension)
    train = recorded(tmp_path / "train", lambda: turned(tokens))
    serve = recorded(tmp_path / "serve", lambda: [turned(tokens[:, at : at + 3]) for at in (0, 3, 6)])
    comparison = op_tools.compare_sequences(train, serve)
    assert comparison.first is None
    assert comparison.not_compared == ["torch.Tensor.mul"]
    assert comparison.verdict.value == "not judged"
    assert "NOT JUDGED: results with rows of no known tokens: Tensor.mul" in comparison.table()


def product_in_order(a, b):
    """Of batches of matrices; its bits depend on no size, as those of a library's product do on some processors."""
    left, right = a.cpu(), b.cpu()
    total = left.new_zeros(left.shape[0], left.shape[1], right.shape[2])
    for place in range(left.shape[2]):
        total = total + left[:, :, place, None] * right[:, place, None, :]
    return total.to("sim")


@pytest.fixture
def products_in_order():
    library = torch.library.Library("aten", "IMPL")
    library.impl("bmm", product_in_order, "PrivateUse1")
    yield
    library._destroy()


@pytest.fixture
def on_sim(tmp_path, decoder):
    """Recordings of both sides on the simulated device, the engine's with a fault."""

    def run(ops, model=None, **options):
        whole = (model or small(decoder)).to("sim")
        tokens = tokens_of().to("sim")
        train = recorded(tmp_path / "train", lambda: decoder.train(whole, tokens), capture=True)
        with sim.fault("scale", ops=ops, scale=1.001, **options) as fault:
            serve = recorded(tmp_path / "serve", lambda: decoder.serve(whole, tokens, 4, 2), capture=True)
        assert fault.hits > 0
        return train, serve

    return run


@pytest.mark.filterwarnings("ignore:.*Overriding a previously registered kernel.*")
@pytest.mark.usefixtures("products_in_order")
@pytest.mark.parametrize(
    ("ops", "name", "call", "not_compared"),
    [
        ("aten::gelu", "torch.nn.functional.gelu", 2, []),
        ("aten::native_layer_norm", "torch.nn.functional.layer_norm", 4, []),
        # Its rows have a column for each key so far: the product that reads them is named.
        ("aten::_softmax", "torch.matmul", 1, ["args[0]"]),
    ],
)
def test_the_operator_with_a_wrong_kernel_in_the_engine_is_named(on_sim, decoder, ops, name, call, not_compared):
    train, serve = on_sim(ops, small(decoder, eager=True), call=call)
    comparison = op_tools.compare_sequences(train, serve)
    assert comparison.exit_status == 1
    row = comparison.beyond_rounding
    assert row is not None, comparison.table()
    assert (row.op, row.not_compared) == (name, not_compared), comparison.table()
    assert row.units > 1000
    assert row.verdict == ("differs, cause not found" if not_compared else "born here")
    assert f"First beyond rounding: {name}" in comparison.table() or row is comparison.first


def test_values_prove_the_rows_and_the_cpu_judges_the_calls(on_sim, tmp_path, capsys):
    train, serve = on_sim("aten::gelu", call=2)
    captures = (f"{train}_capture", f"{serve}_capture")
    hashes = op_tools.compare_sequences(train, serve).beyond_rounding
    row = op_tools.compare_sequences(train, serve, captures=captures).beyond_rounding
    assert (row.proof, hashes.proof) == ("values", "hashes")
    assert (row.op, row.differ) == (hashes.op, hashes.differ)
    assert row.largest == pytest.approx(0.001, rel=0.01)
    assert (row.judged_a, row.judged_b) == ("agrees", "differs")
    status = main(["compare", str(train), str(serve), "--as-sequence", "--json", str(tmp_path / "rows.json")])
    assert status == 1
    assert "gelu" in capsys.readouterr().out
    records = [json.loads(line) for line in (tmp_path / "rows.json").read_text().splitlines()]
    assert [one["op"] for one in records if one["kind"] == "beyond_rounding"] == ["torch.nn.functional.gelu"]
    assert records[-1]["exit_status"] == 1


def test_log_probabilities_are_compared_token_by_token(on_sim):
    train, serve = on_sim("aten::gelu", call=2)
    end = op_tools.compare_sequences(train, serve).log_probabilities
    assert end.op == "torch.Tensor.gather"
    assert end.tokens == 24
    assert 0 < end.differ <= end.tokens
    assert 0 < end.mean <= end.largest < 0.1


def test_an_operator_of_the_engine_alone_stands_before_the_first_large_difference(tmp_path, decoder, monkeypatch):
    model, tokens = small(decoder, dtype=torch.float64), tokens_of()
    train = recorded(tmp_path / "train", lambda: decoder.train(model, tokens))
    gelu = decoder.F.gelu
    monkeypatch.setattr(decoder.F, "gelu", lambda x: torch.sin(gelu(x)))
    serve = recorded(tmp_path / "serve", lambda: decoder.serve(model, tokens, 4))
    comparison = op_tools.compare_sequences(train, serve)
    row = comparison.beyond_rounding
    assert row.verdict == "carried"
    assert any("torch.sin" in text for text in comparison.before(row)), comparison.table()


def test_other_parameters_are_named(tmp_path, decoder):
    model, tokens = small(decoder), tokens_of()
    train = recorded(tmp_path / "train", lambda: decoder.train(model, tokens))
    with torch.no_grad():
        model.blocks[0].norm2.weight[3] += 1
    serve = recorded(tmp_path / "serve", lambda: decoder.serve(model, tokens, 4))
    comparison = op_tools.compare_sequences(train, serve)
    assert comparison.other_parameters == ["Decoder.blocks.0.norm2.weight"]
    assert comparison.exit_status == 1


def test_without_rows_or_tokens_there_is_an_error(tmp_path, decoder):
    with op_tools.OpRecord(output_dir=tmp_path / "plain"):
        torch.ones(2, 3) + 1
    recorded(tmp_path / "rows", lambda: torch.ones(2, 3) + 1)
    with pytest.raises(op_tools.Error, match="has no rows"):
        op_tools.compare_sequences(tmp_path / "plain", tmp_path / "plain")
    with pytest.raises(op_tools.Error, match="no call of embedding"):
        op_tools.compare_sequences(tmp_path / "rows", tmp_path / "rows")
    with pytest.raises(op_tools.Error, match="row_hashes="):
        op_tools.OpRecord(row_hashes=True, modules_only=True).start()


def test_rows_keep_their_prints_in_the_file_whatever_the_layout(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5)
    recorded(tmp_path / "rows", lambda: [x + 0, x.transpose(0, 1).contiguous() + 0, x.to(torch.float64) + 0])
    core = op_tools.read_recording(next((tmp_path / "rows").glob("*.oprec"))).calls._core
    words = torch.frombuffer(bytearray(core.prints), dtype=torch.int64).view(-1, 6)
    tables, begin = {}, 0
    for value, first, second, count in core.rows:
        tables[value, (first, second)] = words[begin : begin + count]
        begin += count
    by_shape = {}
    for (value, dims), prints in tables.items():
        dtype, shape = core.value(value)[4], core.value(value)[6]
        by_shape.setdefault((dtype, shape, dims), []).append(prints)
    plain, turned = (by_shape["torch.float32", shape, (0, 1)][-1] for shape in ((2, 3, 5), (3, 2, 5)))
    assert torch.equal(plain.view(2, 3, 6).transpose(0, 1).reshape(6, 6), turned)
    norms = plain.view(torch.float64)[:, 1].view(2, 3)
    assert torch.allclose(norms, x.to(torch.float64).norm(dim=-1), rtol=1e-12)
    wide = by_shape["torch.float64", (2, 3, 5), (0, 1)][-1]
    assert torch.equal(wide[:, 1:], plain[:, 1:])
    assert not torch.equal(wide[:, 0], plain[:, 0])


def test_the_session_of_the_page_is_what_it_prints(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "sequences.md").read_text()
    setup = page.split("<!-- setup:\n")[1].split("-->")[0]
    code = page.split("```python\n")[1].split("```")[0]
    printed = page.split("```text\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(setup + code, {})  # noqa: S102
    assert capsys.readouterr().out == printed


def test_the_part_of_an_operator_is_measured_by_running_both_programs_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    program = str(ROOT / "examples" / "decoder.py")
    for side in ("train", "serve"):
        launched(
            "-m", "op_tools", "run", "-q", "--record", "--row-hashes", "--output-dir", side, program, side, cwd=tmp_path
        )
    comparison = op_tools.compare_sequences("train", "serve")
    if comparison.log_probabilities.differ == 0 or not comparison.births():
        pytest.skip("the kernels of this CPU keep the bits of each token: there is no part to measure")
    assert main(["compare", "train", "serve", "--as-sequence", "--parts", "1"]) == 1
    text = capsys.readouterr().out
    first = comparison.births()[0].op.replace("torch.nn.functional.", "F.")
    table = text[text.index("op in float64") :].splitlines()
    assert table[1].startswith(first)
    alone, remaining, part = map(float, table[1].split()[1:4])
    assert alone == remaining
    assert part == pytest.approx(comparison.log_probabilities.mean - remaining, rel=0.01, abs=1e-12)


def test_the_parts_of_several_operators_add_up_to_the_whole(monkeypatch, tmp_path):
    """The order is that of the differences which each leaves alone; the differences here are those of three operators."""
    monkeypatch.chdir(tmp_path)
    own = {"torch.a": 1.0, "torch.b": 4.0, "torch.c": 2.0}

    def left(ops):
        return sum(size for op, size in own.items() if op not in ops)

    def comparison(ops):
        end = SimpleNamespace(op="torch.log_softmax", line="", mean=left(ops))
        rows = [SimpleNamespace(op=op, verdict=CallVerdict.BORN) for op in own]
        return SimpleNamespace(log_probabilities=end, rows=rows, births=lambda: rows)

    monkeypatch.setattr(sequence_parts, "_again", lambda recording, ops, folder: ops)
    monkeypatch.setattr(sequence_parts, "compare_sequences", lambda a, b: comparison(a))
    said = []
    parts = sequence_parts.sequence_parts(comparison([]), ("train", "serve"), 3, said.append)
    assert parts.whole == 7
    assert [(row.op, row.alone, row.remaining, row.part) for row in parts.rows] == [
        ("torch.b", 3, 3, 4),
        ("torch.c", 5, 1, 2),
        ("torch.a", 6, 0, 1),
    ]
    assert sum(row.part for row in parts.rows) + parts.rows[-1].remaining == parts.whole
    assert len(said) == 5
    assert "57%" in parts.table()
