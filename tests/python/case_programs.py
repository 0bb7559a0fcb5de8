"""Small programs that other tools break, each for a reason that people reported: tests/python/test_cases.py runs them with and
without tools. A program's results are all that its user sees of it."""

import copy
import functools
import io
import pickle
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts


def same_tensor_as_a_subclass_twice():  # pytorch/pytorch#149290
    class Tagged(torch.Tensor):
        @staticmethod
        def __new__(cls, data):
            return data.as_subclass(cls)

    leaf = torch.randn(6, requires_grad=True)
    middle = leaf * 3
    a, b = Tagged(middle), Tagged(middle)
    (a.sin() + b).sum().backward()
    return type(a).__name__, type(a.sin()).__name__, a.data_ptr() == middle.data_ptr(), leaf.grad


def subclass_that_dispatches_again():  # pytorch/pytorch#136565
    class Pair(torch.Tensor):
        @staticmethod
        def __new__(cls, a, b):
            return torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype, device=a.device)

        def __init__(self, a, b):
            self.a, self.b = a, b

        def __tensor_flatten__(self):
            return ["a", "b"], None

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            def part(name):
                return tree_map(lambda t: getattr(t, name) if isinstance(t, Pair) else t, (args, kwargs or {}))

            with torch.overrides.enable_reentrant_dispatch():
                x, y = (func(*given, **named) for given, named in (part("a"), part("b")))
            return Pair(x, y) if isinstance(x, torch.Tensor) else x

    t = Pair(torch.rand(4, 4), torch.rand(4, 4))
    r = F.gelu(t.clone() @ t + 1).t().contiguous().softmax(-1)
    return type(r).__name__, r.a, r.b


def threads_and_a_pool():  # pytorch/kineto#443
    results = {}

    def work(number):
        x = torch.randn(32, generator=torch.Generator().manual_seed(number), requires_grad=True)
        y = x
        for _ in range(20):
            y = torch.add(torch.mul(y, 1.01), 0.5)
        y.sum().backward()
        results[number] = x.grad.clone(), y.detach()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(2, 8)))
    return [results[number] for number in sorted(results)]


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.act = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.drop = nn.Dropout(0.2, inplace=True)

    def forward(self, x):
        shortcut = x
        x = self.drop(self.conv2(self.act(self.norm(self.conv1(x)))))
        x += shortcut
        v = x.squeeze(0)
        v += 1
        v[..., 0].mul_(2)
        return self.act(x)


def in_place_calls_in_modules_with_hooks():  # wandb/wandb#2157, pytorch/pytorch#61519, #181832
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(inplace=True), Block(4), Block(4), nn.Flatten(), nn.Linear(144, 2))
    seen = []
    x = torch.randn(1, 3, 6, 6, requires_grad=True)
    y = net(x)
    y.register_hook(lambda gradient: seen.append(gradient.clone()) or gradient * 1.5)
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.norm()))
    y.pow(2).sum().backward()
    return seen, x.grad


def counted_operations():  # pytorch/pytorch#126268, #134242, #124196
    from torch.utils.flop_counter import FlopCounterMode

    net = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    x = torch.randn(2, 5, 16)
    with FlopCounterMode(display=False) as flops:
        checkpoint(net, x, use_reentrant=False).sum().backward()
    counts = [
        flops.get_total_flops(),
        sorted((str(key), count) for key, count in flops.get_flop_counts()["Global"].items()),
    ]
    net.eval()
    for context in (torch.no_grad, torch.inference_mode):
        with context(), FlopCounterMode(display=False) as flops:
            z = F.linear(x, net.linear1.weight) @ net.linear1.weight
        counts += [flops.get_total_flops(), z.is_inference(), z]
    return counts


def _shown(work):
    """The results of a call, as plain bytes; or its error."""
    try:
        result = work()
    except Exception as error:  # of any kind
        return f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"
    if not isinstance(result, torch.Tensor):
        return str(result)
    result = result.detach()
    if result.dtype is torch.complex32:
        result = torch.view_as_real(result)
    return tuple(result.shape), bytes(result.contiguous().view(torch.uint8).reshape(-1).tolist())


def odd_tensors():  # pytorch/pytorch#82854, #112767, #125379, #142217, Lightning-AI/pytorch-lightning#21588
    jagged = functools.partial(torch.nested.nested_tensor, layout=torch.jagged)
    x = torch.randn(6, 4)
    nested = jagged([torch.randn(2, 4), torch.randn(3, 4)], requires_grad=True)
    padded = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)])
    heads = jagged([torch.randn(2, 2, 4), torch.randn(3, 2, 4)]).transpose(1, 2)
    sparse = torch.sparse_coo_tensor([[0, 1, 1], [2, 0, 2]], [3.0, 4.0, 5.0], (2, 6)).requires_grad_()
    weight = torch.randn(5, 3, requires_grad=True)
    c = torch.randn(4, dtype=torch.complex64, requires_grad=True)
    e4, e5 = torch.float8_e4m3fn, torch.float8_e5m2
    a8, unit = torch.randn(16, 16).to(e4), torch.tensor(1.0)
    calls = [
        lambda: (F.layer_norm(F.gelu(nested @ x.t()[:, :4]), (4,)) * 2).values(),
        lambda: F.scaled_dot_product_attention(heads, heads, heads).values(),
        lambda: torch.autograd.grad((nested.sin() * 2).values().sum(), nested)[0].values(),
        lambda: F.linear(padded, torch.randn(3, 4)).to_padded_tensor(0.0),
        lambda: torch.sparse.mm(sparse, x),
        lambda: torch.autograd.grad(torch.sparse.mm(sparse, x).sum(), sparse)[0].to_dense(),
        lambda: sparse.detach().to_sparse_csr() @ x + 1,
        lambda: torch.autograd.grad(F.embedding(torch.tensor([1, 1, 3]), weight, sparse=True).sum(), weight)[
            0
        ].to_dense(),
        lambda: torch.dequantize(F.relu(torch.quantize_per_tensor(x, 0.1, 3, torch.quint8))),
        lambda: torch.quantize_per_channel(x, torch.full((4,), 0.1), torch.zeros(4).long(), 1, torch.qint8).int_repr(),
        lambda: (x.to(e4).to(torch.float32) * 2).to(e5),
        lambda: torch._scaled_mm(a8, a8.t(), scale_a=unit, scale_b=unit, out_dtype=torch.float32),
        lambda: torch.randn(4, dtype=torch.complex64).to(torch.complex32) * 2,
        lambda: torch.autograd.grad((c * c.conj()).real.sum(), c)[0],
        lambda: torch.randn(3, 3, dtype=torch.complex64).conj().t() @ torch.ones(3, 3, dtype=torch.complex64),
        lambda: torch.randn(3, dtype=torch.complex64).conj().imag + 1,
        lambda: (torch.ones(2, 3, names=("a", "b")) + 1).sum("b").rename(None),
        lambda: (torch.ones(2, 3, device="meta") @ torch.ones(3, 2, device="meta")).shape,
        lambda: torch.arange(5, dtype=torch.uint16).to(torch.int32),
        lambda: torch.tensor([2**63 + 5], dtype=torch.uint64).to(torch.float64),
        lambda: torch.cat([torch.randn(0, 4) @ x.t(), torch.zeros(0, 6)]).sum(0),
        lambda: torch.randn(0, 4).max(0),
        lambda: torch.tensor([1.0]) * 1e39,
        lambda: torch.tensor([1]) + 2**70,
        lambda: torch.ones(1).expand(2**33)[5:8] * 2,
        lambda: torch.arange(10.0).as_strided((4, 4), (1, 2)).sum(0),
        lambda: torch.randn(2, 3).to_mkldnn().to_dense(),
        lambda: torch.from_dlpack(torch.arange(4.0)) * 3,
        lambda: torch.from_numpy(x.numpy()[::2, ::-1].copy()) + 1,
        lambda: torch.frombuffer(bytearray(b"12345678"), dtype=torch.int16) + 1,
    ]
    return [_shown(call) for call in calls]


def selective_checkpoint():  # pytorch/torchtitan#1117, pytorch/pytorch#161889, #105489
    count = {"saved": 0, "computed again": 0}

    def policy(context, op, *args, **kwargs):
        if op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.gelu.default):
            count["computed again" if context.is_recompute else "saved"] += 1
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    def block(x, w, b):
        for _ in range(2):
            x = F.gelu(F.linear(x, w, b))
            x = F.dropout(x, 0.1) + x
            with torch.no_grad():
                top = x.topk(2).indices
            x = x.scatter_add(1, top, torch.ones_like(x)[:, :2])
        return x

    inputs = [
        torch.randn(5, 8, requires_grad=True),
        torch.randn(8, 8, requires_grad=True),
        torch.randn(8, requires_grad=True),
    ]
    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    checkpoint(block, *inputs, use_reentrant=False, context_fn=contexts).pow(2).sum().backward()
    checkpoint(block, *inputs, use_reentrant=True).sum().backward()
    return count, [one.grad for one in inputs]


class Skip(torch.autograd.Function):
    """None for a tensor that requires a gradient."""

    @staticmethod
    def forward(ctx, a, b, flag):
        ctx.set_materialize_grads(False)
        ctx.flag = flag
        return a * 2, b + 1

    @staticmethod
    def backward(ctx, ga, gb):
        return (None if ctx.flag or ga is None else ga * 2), gb, None


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(3)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * 3


class Indices(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        values, places = x.sort()
        ctx.mark_non_differentiable(places)
        ctx.save_for_backward(places)
        return values, places

    @staticmethod
    def backward(ctx, g, _):
        (places,) = ctx.saved_tensors
        return torch.zeros_like(g).scatter(-1, places, g)


class Straight(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.round()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g

    @staticmethod
    def jvp(ctx, t):
        return t


def functions_and_one_tensor_as_several_inputs():  # DeepLink-org/ditorch#18, #37, pytorch/pytorch#83481
    grad = torch.autograd.grad
    x, w = torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)
    seen = []
    p, q = Skip.apply(x, w, True)
    seen += grad(p.sum() + q.sum(), (x, w), allow_unused=True)
    _, q = Skip.apply(x, w, False)
    seen += grad(q.sum(), (x, w), allow_unused=True)
    y = Dirty.apply(x * 1.5)
    seen += grad((y * y).sum(), x)
    v, i = Indices.apply(x)
    seen += [v.detach(), i, *grad((v * torch.arange(5.0)).sum(), x)]
    seen += torch.func.vmap(torch.func.grad(lambda t: (Straight.apply(t) * t).sum()))(torch.randn(3, 4)).unbind()
    seen += torch.func.jvp(lambda t: Straight.apply(t) * t, (x.detach(),), (torch.ones(5),))
    m = torch.randn(4, 4, requires_grad=True)
    r = torch.addmm(m, m, m) + torch.where(m > 0, m, m) + torch.lerp(m, m, m) + torch.addcmul(m, m, m)
    seen += grad((r + torch.einsum("ij,jk->ik", m, m)).sum(), m)
    seen += grad(torch.cat([m, m, m[:1]]).mul_(m[0]).sum(), m)
    (g,) = grad((m.sin() @ m).tanh().sum(), m, create_graph=True)
    seen += grad(g.pow(2).sum(), m)
    n, projections = m[:, None], (m.repeat(3, 1), m.flatten()[:12])
    attention, _ = F.multi_head_attention_forward(n, n, n, 4, 2, *projections, None, None, False, 0.0, m, m[0])
    return [*seen, *grad(attention.sum(), m)]


def copies_and_pickles():  # pytorch/pytorch#65430, #47051, #79580
    import numpy as np

    net = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(2):
        y = net(torch.randn(3, 2, 8))
        y.sum().backward()
        optimizer.step()
    seen = [*copy.deepcopy(net).parameters(), sorted(copy.deepcopy(optimizer).state_dict()["state"][0])]
    try:
        copy.deepcopy(y)
    except RuntimeError as error:
        seen.append(str(error)[:50])
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "y": y}, file)
    file.seek(0)
    back = torch.load(file, weights_only=True)
    seen += [back["y"].detach(), back["net"]["linear1.weight"], back["y"].requires_grad, back["y"].is_leaf]
    n = Labelled(torch.ones(3), "a") + Labelled(torch.ones(3), "b")
    seen += [type(n).__name__, n.label, type(pickle.loads(pickle.dumps(n))).__name__]
    try:
        seen.append(copy.deepcopy(n).label)
    except RuntimeError as error:
        seen.append(str(error)[:30])
    array = np.ones(3, dtype=np.float32)
    seen += [(torch.from_numpy(array) + array).tolist(), np.add(array, torch.ones(3).numpy()).tolist()]
    seen += [
        np.asarray(torch.arange(3)).tolist(),
        torch.ones(2).__array__().tolist(),
        type(np.float32(2) * torch.ones(2)).__name__,
    ]
    context = torch.multiprocessing.get_context("fork")
    sent, returned = context.SimpleQueue(), context.SimpleQueue()
    shared = torch.ones(4)
    process = context.Process(target=_double, args=(sent, returned))
    process.start()
    sent.put(shared)
    seen += [returned.get(), shared]
    process.join()
    return seen


class Labelled(torch.Tensor):
    @staticmethod
    def __new__(cls, data, label="x"):
        tensor = torch.Tensor._make_subclass(cls, data)
        tensor.label = label
        return tensor

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, Labelled):
            result.label = "+".join(getattr(one, "label", "?") for one in args if isinstance(one, Labelled))
        return result


def _double(sent, returned):
    shared = sent.get()
    shared.mul_(2)
    returned.put(shared.sum().item())


def transforms_traces_and_exports():
    func, vmap = torch.func, torch.func.vmap
    nets = [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)) for _ in range(3)]
    parameters, buffers = func.stack_module_state(nets)
    base, x = nets[0], torch.randn(5, 4)
    own = dict(base.named_parameters())
    seen = [vmap(lambda p, b: func.functional_call(base, (p, b), (x,)))(parameters, buffers)]
    per_sample = func.grad(lambda p, one: func.functional_call(base, p, (one[None],)).pow(2).sum())
    seen += [gradient for _, gradient in sorted(vmap(per_sample, (None, 0))(own, x).items())]
    seen += [func.jacrev(lambda t: t.sin() * 2)(x[0]), func.jacfwd(torch.tanh)(x[0])]
    seen += [
        func.hessian(lambda t: (t.sin() * t.exp()).sum())(x[0]),
        *func.jvp(torch.sigmoid, (x,), (torch.ones_like(x),)),
    ]
    product, pull = func.vjp(lambda a: a @ a.t(), x)
    seen += [product, *pull(torch.ones(5, 5))]
    seen.append(vmap(lambda _: torch.randn(3), randomness="different")(torch.arange(4)))
    seen.append(vmap(lambda a: F.dropout(a, 0.5), randomness="same")(x))
    seen += [torch.jit.trace(base, x)(x), torch.jit.script(nn.Sequential(nn.Linear(4, 2), nn.ReLU()))(x)]
    seen += [torch.export.export(base, (x,)).module()(x), torch.fx.symbolic_trace(base)(x)]
    seen.append(torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,)))
    seen.append(torch.autograd.functional.jacobian(lambda a: a.pow(3), x[0]))
    z = x.clone().requires_grad_()
    seen += torch.autograd.grad(base(z).sum(1), z, torch.eye(5), is_grads_batched=True)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        seen.append(torch.autograd.forward_ad.unpack_dual(base(dual)).tangent)
    with torch.autograd.graph.saved_tensors_hooks(lambda a: a.clone(), lambda a: a):
        loss = base(z).sum()
    seen += torch.autograd.grad(loss, z)
    with torch.autograd.set_detect_anomaly(True):
        seen += torch.autograd.grad((z * 2).exp().sum(), z)
    with torch.device("meta"):
        seen.append(tuple(nn.Linear(10**6, 10**6).weight.shape))
    return [one.detach() if isinstance(one, torch.Tensor) else one for one in seen]


def profiled_with_a_schedule():  # pytorch/pytorch#152617, Lightning-AI/pytorch-lightning#20779
    from torch.profiler import ProfilerActivity, profile, record_function, schedule

    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    seen = []

    def note(profiler):
        # An operator inside its own event: torch leaves it out where it is the only operator, which a hook in Python ends.
        events = [one for one in profiler.events() if one.cpu_parent is None or one.cpu_parent.name != one.name]
        names = [event.name for event in events]
        seen.extend(sorted(name for name in names if name.startswith(("aten::", "my_")) or "Backward" in name))

    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=2),
        on_trace_ready=note,
        record_shapes=True,
        with_stack=True,
        profile_memory=True,
    ) as profiler:
        for _ in range(5):
            with record_function("my_step"):
                loss = net(torch.randn(4, 8)).pow(2).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            profiler.step()
    return loss.detach(), seen


def quantized_weights():  # pytorch/ao#515
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantize_(net, Int8WeightOnlyConfig())
    with torch.inference_mode():
        y = net(torch.randn(4, 64))
    return type(net[0].weight).__name__, sorted(net.state_dict()), y


def messages_in_a_graph():
    from torch_geometric import EdgeIndex
    from torch_geometric.data import Batch, Data
    from torch_geometric.nn import GATConv, GCNConv, SAGEConv, global_mean_pool

    edges = torch.randint(0, 10, (2, 40))
    x = torch.randn(10, 8, requires_grad=True)
    batch = Batch.from_data_list([Data(x=x, edge_index=edges), Data(x=x * 2, edge_index=edges.flip(0))])
    y = batch.x
    for net in (GCNConv(8, 8), GATConv(8, 4, heads=2, dropout=0.1), SAGEConv(8, 8, aggr="max")):
        y = net(y, batch.edge_index).relu()
    z = global_mean_pool(y, batch.batch)
    index = EdgeIndex(edges, sparse_size=(10, 10)).sort_by("row")[0]
    (z.pow(2).sum() + index.matmul(x).sum()).backward()
    return type(index).__name__, x.grad, z.detach()


PROGRAMS = (
    same_tensor_as_a_subclass_twice,
    subclass_that_dispatches_again,
    threads_and_a_pool,
    in_place_calls_in_modules_with_hooks,
    counted_operations,
    odd_tensors,
    selective_checkpoint,
    functions_and_one_tensor_as_several_inputs,
    copies_and_pickles,
    transforms_traces_and_exports,
    profiled_with_a_schedule,
)
NEED_PACKAGES = {"torchao": quantized_weights, "torch_geometric": messages_in_a_graph}
