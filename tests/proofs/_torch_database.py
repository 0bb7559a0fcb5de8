"""Programs made of the other databases in torch's wheel: modules, optimizers, and the small ones of operators.

of(name, samples) makes the calls of an entry, as _op_database.Builder does for an operator of op_db.
"""

from __future__ import annotations

import copy
import functools
import io
import itertools
import pickle
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from _op_database import Builder, aliases, by_name, digest, facts, operators, seed, tensors, text_of
from torch.nn.parameter import UninitializedTensorMixin
from torch.utils._pytree import tree_flatten, tree_map_only

Keep = Callable[[str, Any], None]
GRADIENTS = ("gradients", "first gradients", "second gradients", "arrived")


@functools.cache
def database() -> dict[str, Any]:
    """All entries, by the kind of entry and its name."""
    operators()  # the names that its import needs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.autograd_function_db import autograd_function_db
        from torch.testing._internal.common_modules import module_db
        from torch.testing._internal.common_optimizers import optim_db
        from torch.testing._internal.custom_op_db import custom_op_db
        from torch.testing._internal.hop_db import hop_db
    entries_by_name = {f"module {info.name}": info for info in module_db}
    entries_by_name |= {f"optimizer {info.name}": info for info in optim_db}
    for kind, entries in (("function", autograd_function_db), ("custom", custom_op_db), ("higher", hop_db)):
        entries_by_name |= {
            f"{kind} {name}": info for name, info in by_name(entries).items() if info.supported_dtypes("cpu")
        }
    return entries_by_name


def of(name: str, samples: int) -> Any:
    info = database()[name]
    kind = name.partition(" ")[0]
    builder = {"module": Modules, "optimizer": Optimizers}.get(kind)
    return builder(name, info, samples) if builder else Builder(name, samples, info)


@dataclass
class Program:
    """A few lines that somebody might write; `body` hands its results to keep(name, anything)."""

    name: str
    body: Callable[[Keep], None]
    kept: list[tuple[str, Any]] = field(default_factory=list)
    error: BaseException | None = None
    random: torch.Tensor | None = None

    def run(self) -> None:
        seed(1)
        try:
            self.body(lambda name, tree: self.kept.append((name, tree)))
        except Exception as error:
            self.error = error
        self.random = torch.get_rng_state()


class Programs:
    """The common part of modules and optimizers."""

    def __init__(self, name: str, info: Any, samples: int) -> None:
        self.name, self.info, self.samples = name, info, samples
        self.left_out: dict[str, str] = {}

    def programs(self) -> Iterator[Program]:
        raise NotImplementedError

    def build(self) -> list[Program]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return list(self.programs())

    def seen(self, program: Program) -> dict[str, Any]:
        assert program.random is not None
        facts_by_name: dict[str, Any] = {"error": text_of(program.error), "random state": digest(program.random)}
        for name, tree in program.kept:
            leaves, form = tree_flatten(tree)
            facts_by_name[f"{name} form"] = str(form)
            for index, leaf in enumerate(leaves):
                if isinstance(leaf, torch.Tensor) and not isinstance(leaf, UninitializedTensorMixin):
                    facts_by_name[f"{name} {index}"] = of_leaf = facts(leaf)
                    # The engine adds up in place where nobody else holds a part, and a tool may hold a part for a while.
                    if name in GRADIENTS:
                        del of_leaf["version"]
                else:
                    facts_by_name[f"{name} {index}"] = (type(leaf), re.sub("0x[0-9a-f]+", "0x", repr(leaf)))
        facts_by_name["aliases"] = aliases(tensors([tree for _, tree in program.kept]))
        return facts_by_name


def clone(tree: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), tree)


class Modules(Programs):
    """torch.nn's modules: made, run forward and backward, hooked, copied, moved, as people do it."""

    def programs(self) -> Iterator[Program]:
        modes = (True, False) if self.info.train_and_eval_differ else (True,)
        for dtype, training in itertools.product((torch.float32, torch.bfloat16), modes):
            count = self.samples if dtype is torch.float32 else 1
            for variant in (plain, hooked, copied, strided, functional, moved, checkpointed, inferring):
                # Inputs of its own for each: the last variant may have changed them.
                for index, sample in enumerate(itertools.islice(self._samples(dtype, training), count)):
                    body = functools.partial(self._body, variant, sample, dtype, training)
                    mode = "train" if training else "eval"
                    yield Program(f"{str(dtype)[6:]} {mode} {index} {variant.__name__}", body)
        if self.info.module_error_inputs_func is not None:
            seed()
            errors = self.info.module_error_inputs_func(
                self.info, device="cpu", dtype=torch.float32, requires_grad=False, training=True
            )
            for index, error in enumerate(errors):
                body = functools.partial(self._body, plain, error.module_error_input, torch.float32, True)
                yield Program(f"error {index}", body)

    def _samples(self, dtype: torch.dtype, training: bool) -> list[Any]:
        seed()
        try:
            return self.info.module_inputs_func(
                self.info, device="cpu", dtype=dtype, requires_grad=True, training=training
            )
        except Exception as error:
            self.left_out[f"{dtype} samples"] = f"{type(error).__name__}: {error}".splitlines()[0]
            return []

    def _body(self, variant: Any, sample: Any, dtype: torch.dtype, training: bool, keep: Keep) -> None:
        constructed = sample.constructor_input
        module = self.info.module_cls(*constructed.args, **constructed.kwargs).to(dtype).train(training)
        forwarded = sample.forward_input
        args, kwargs = (
            ((), {}) if forwarded is None else tree_map_only(torch.Tensor, leaf, (forwarded.args, forwarded.kwargs))
        )
        keep("inputs", (args, kwargs))
        if self.info.is_lazy and variant is not plain:
            module(*args, **kwargs)  # its parameters are there from now on
        try:
            variant(keep, module, args, kwargs, self.info.supports_gradgrad)
        finally:
            keep("parameters", dict(module.named_parameters()))
            keep("gradients", [parameter.grad for parameter in module.parameters()])
            keep("buffers", dict(module.named_buffers()))


def leaf(tensor: torch.Tensor) -> torch.Tensor:
    """Without the graph that a sample comes with: it could be walked only once."""
    return tensor if tensor.is_leaf else tensor.detach().requires_grad_()


def differentiable(tree: Any) -> list[torch.Tensor]:
    return [tensor for tensor in tensors(tree) if tensor.requires_grad]


def total(tree: Any) -> torch.Tensor:
    """Of all outputs that a gradient may come from, each element with another weight."""
    parts = [tensor for tensor in differentiable(tree) if tensor.grad_fn is not None]
    parts = [torch.view_as_real(part) if part.is_complex() else part for part in parts]
    return sum((part * torch.randn(part.shape, dtype=part.dtype)).sum() for part in parts)  # type: ignore[return-value]


def plain(keep: Keep, module: torch.nn.Module, args: Any, kwargs: Any, twice: bool) -> None:
    out = module(*args, **kwargs)
    keep("output", out)
    keep("state", module.state_dict())
    sources = differentiable((args, kwargs)) + differentiable(list(module.parameters()))
    if not sources or not differentiable(out):
        return
    first = torch.autograd.grad(total(out), sources, create_graph=twice, allow_unused=True)
    keep("first gradients", first)
    again = [gradient for gradient in first if gradient is not None and gradient.grad_fn is not None]
    if twice and again:
        keep("second gradients", torch.autograd.grad(total(again), sources, allow_unused=True))


def hooked(keep: Keep, module: torch.nn.Module, args: Any, kwargs: Any, twice: bool) -> None:
    def note(name: str) -> Any:
        return lambda _, *given: keep(name, clone(given))

    handles = [
        module.register_forward_pre_hook(note("pre hook"), with_kwargs=True),
        module.register_forward_hook(note("hook"), with_kwargs=True),
        module.register_full_backward_pre_hook(note("backward pre hook")),
        module.register_full_backward_hook(note("backward hook")),
    ]
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda it: keep("accumulated", clone(it.grad)))
            parameter.register_hook(lambda gradient: gradient * 2)
    for _ in range(2):  # the second time gradients are added up
        out = module(*args, **kwargs)
        keep("output", clone(out))
        if differentiable(out):
            total(out).backward()
    for handle in handles:
        handle.remove()
    keep("arrived", [tensor.grad for tensor in differentiable((args, kwargs)) if tensor.is_leaf])
    keep("after hooks", module(*args, **kwargs))


def copied(keep: Keep, module: torch.nn.Module, args: Any, kwargs: Any, twice: bool) -> None:
    other = copy.deepcopy(module)
    for parameter in other.parameters():
        with torch.no_grad():
            parameter.mul_(0.5)
    third = pickle.loads(pickle.dumps(other))
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    keep("keys", str(other.load_state_dict(torch.load(file, weights_only=True))))
    assigned = copy.deepcopy(third)
    keep("assigned keys", str(assigned.load_state_dict(copy.deepcopy(module.state_dict()), assign=True)))
    for name, each in (("deepcopy", other), ("pickle", third), ("assigned", assigned)):
        keep(name, each(*args, **kwargs))
        keep(f"{name} state", each.state_dict())
    module.zero_grad(set_to_none=False)


def strided(keep: Keep, module: torch.nn.Module, args: Any, kwargs: Any, twice: bool) -> None:
    from torch.testing._internal.common_utils import noncontiguous_like

    with torch.no_grad():
        for parameter in module.parameters():
            parameter.data = noncontiguous_like(parameter.data)
    args, kwargs = tree_map_only(
        torch.Tensor, lambda it: noncontiguous_like(it) if it.dim() and it.numel() > 1 else it, (args, kwargs)
    )
    keep("strided inputs", (args, kwargs))
    plain(keep, module, args, kwargs, False)


def functional(keep: Keep, module: torch.nn.Module, args: Any, kwargs: Any, twice: bool) -> None:
    values = {name: value.detach().clone() for name, value in module.named_parameters()}
    rest = {name: value.clone() for name, value in module.named_buffers()}

    def loss(values: Any) -> Any:
        own = {name: value.clone() for name, value in rest.items()}
        out = torch.func.functional_call(module, (values, own), args, kwargs)
        return sum(part.float().sum() for part in tensors(out) if part.is_floating_point())

    keep("called", torch.func.functional_call(module, (values, rest), args, kwargs))
    if values:
        keep("functional gradients", torch.func.grad(loss)(values))
        pairs = {name: torch.stack([value, value * 2]) for name, value in values.items()}
        keep("of two", torch.func.vmap(torch.func.grad(loss), randomness="different")(pairs))


def moved(keep: Keep, module: torch.nn.Module, args: Any, kwargs: Any, twice: bool) -> None:
    before = torch.__future__.get_swap_module_params_on_conversion()
    own = next((tensor.dtype for tensor in module.parameters()), torch.float32)
    try:
        for swap in (False, True):
            torch.__future__.set_swap_module_params_on_conversion(swap)
            module.double()
            keep("double", clone(module.state_dict()))
            module.to(own)
            module.to(memory_format=torch.channels_last)
            keep(f"swap {swap}", clone(module(*args, **kwargs)))
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
    keep("meta", copy.deepcopy(module).to("meta").state_dict())


def checkpointed(keep: Keep, module: torch.nn.Module, args: Any, kwargs: Any, twice: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    with torch.autocast("cpu", torch.bfloat16):
        out = checkpoint(module, *args, use_reentrant=False, **kwargs)
    keep("output", out)
    if differentiable(out):
        total(out).backward()
    keep("arrived", [tensor.grad for tensor in differentiable((args, kwargs)) if tensor.is_leaf])


def inferring(keep: Keep, module: torch.nn.Module, args: Any, kwargs: Any, twice: bool) -> None:
    with torch.no_grad():
        keep("without a graph", module(*args, **kwargs))
    with torch.inference_mode():
        keep("inference", module(*args, **kwargs))


class Optimizers(Programs):
    """torch.optim's methods: every configuration, each with and without the loops over lists and the fused kernels."""

    def programs(self) -> Iterator[Program]:
        from torch.testing._internal.common_optimizers import _get_optim_inputs_including_global_cliquey_kwargs

        info = self.info
        kinds = [torch.float32, torch.bfloat16] + [torch.complex64] * info.supports_complex
        for dtype in kinds:
            for number, example in enumerate(_get_optim_inputs_including_global_cliquey_kwargs("cpu", dtype, info)):
                if dtype is torch.float32 or number < 3 * self.samples:
                    yield self._program(str(dtype)[6:], example, dtype)
                # `capturable` is for other devices; here it raises, with and without a tool.
                if dtype is torch.float32 and info.has_capturable_arg and number < self.samples:
                    example = copy.deepcopy(example)
                    example.kwargs["capturable"] = True
                    yield self._program("capturable", example, dtype)
        default = type(example)(params=None, kwargs={}, desc="default")
        for number, schedulers in enumerate(info.scheduler_inputs):
            body = functools.partial(self._scheduled, schedulers)
            yield Program(f"schedulers {number}", body)
        if info.supports_sparse or info.only_supports_sparse_grads:
            sparse = type(example)(params=None, kwargs=dict(info.metadata_for_sparse[0]), desc="")
            yield self._program("sparse", sparse, torch.float32, sparse=True)
        yield Program("scaled", functools.partial(self._scaled, default.kwargs))
        yield Program("in backward", functools.partial(self._in_backward, default.kwargs))
        if info.optim_error_inputs_func is not None:
            seed()
            for number, error in enumerate(info.optim_error_inputs_func("cpu", torch.float32)):
                yield Program(f"error {number}", functools.partial(self._wrong, error.optimizer_error_input))

    def _program(self, kind: str, example: Any, dtype: torch.dtype, sparse: bool = False) -> Program:
        # A learning rate that is a tensor is changed by steps: each program has its own.
        kwargs = copy.deepcopy(example.kwargs)
        if self.info.name == "LBFGS":
            kwargs["max_iter"] = 3  # of 20: each asks for the loss and its gradient
        body = functools.partial(self._steps, kwargs, dtype, sparse)
        return Program(f"{kind} {example.desc} {sorted(example.kwargs)}", body)

    def _parameters(self, dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
        # Muon takes matrices only.
        shapes = [(3, 5), (4, 2), (2, 3)] if self.info.name == "Muon" else [(3, 5), (4,), (), (2, 3, 2)]
        if self.info.only_supports_sparse_grads:
            shapes = [(3, 5), (4,)]
        return [torch.nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes]

    def _loss(self, parameters: list[Any], sparse: bool) -> Callable[[], torch.Tensor]:
        def closure() -> torch.Tensor:
            for parameter in parameters:
                parameter.grad = None
            loss = sum(((parameter - 0.3).abs() ** 2).sum() for parameter in parameters)
            loss.backward()
            if sparse or self.info.only_supports_sparse_grads:
                for parameter in parameters:
                    if parameter.dim():
                        parameter.grad = parameter.grad.to_sparse()
            return loss

        return closure

    def _steps(self, kwargs: dict[str, Any], dtype: torch.dtype, sparse: bool, keep: Keep) -> None:
        parameters = self._parameters(dtype)
        groups: Any = parameters
        if self.info.supports_param_groups:
            groups = [{"params": parameters[:1]}, {"params": parameters[1:], "lr": kwargs.get("lr", 0.02)}]
        leaves = parameters
        if kwargs.get("differentiable"):
            parameters = [parameter.clone() for parameter in leaves]
            for parameter in parameters:
                parameter.grad = torch.rand_like(parameter)
            optimizer = self.info.optim_cls(parameters, **kwargs)
            for _ in range(2):
                optimizer.step(*([self._loss(leaves, sparse)] if self.info.step_requires_closure else []))
            keep("through steps", torch.autograd.grad(total(parameters), leaves, allow_unused=True))
            keep("state", optimizer.state_dict())
            return
        optimizer = self.info.optim_cls(groups, **kwargs)
        optimizer.register_step_pre_hook(lambda *_: keep("pre hook", clone(parameters)))
        optimizer.register_step_post_hook(lambda *_: keep("post hook", clone(parameters)))
        closure = self._loss(parameters, sparse)
        for _ in range(3):
            keep("loss", optimizer.step(closure))
        keep("parameters", parameters)
        keep("gradients", [parameter.grad for parameter in parameters])
        keep("state", optimizer.state_dict())

        other = self.info.optim_cls(copy.deepcopy(groups), **kwargs)
        other.load_state_dict(optimizer.state_dict())
        third = copy.deepcopy(other)
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        third.load_state_dict(torch.load(file, weights_only=True))
        for name, each in (("loaded", other), ("copied", third)):
            mine = [parameter for group in each.param_groups for parameter in group["params"]]
            keep(f"{name} loss", each.step(self._loss(mine, sparse)))
            keep(f"{name} parameters", mine)
            keep(f"{name} state", each.state_dict())
        optimizer.zero_grad(set_to_none=False)
        optimizer.zero_grad()

    def _scheduled(self, schedulers: Any, keep: Keep) -> None:
        parameters = self._parameters()
        optimizer = self.info.optim_cls(parameters, lr=0.01)
        attached = [make(optimizer) for make in schedulers]
        closure = self._loss(parameters, False)
        for _ in range(4):
            loss = optimizer.step(closure)
            for scheduler in attached:
                scheduler.step(*([loss] if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) else []))
            keep("rates", [group["lr"] for group in optimizer.param_groups])
        keep("parameters", parameters)
        keep("schedulers", [scheduler.state_dict() for scheduler in attached])

    def _scaled(self, kwargs: dict[str, Any], keep: Keep) -> None:
        """Loss scaling with an overflow in the middle; the fused methods skip the step by themselves."""
        for fused in {None, "cpu" in self.info.supports_fused_on or None}:
            parameters = self._parameters()
            optimizer = self.info.optim_cls(parameters, **kwargs, **({"fused": True} if fused else {}))
            scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
            for factor in (1.0, float("inf"), 1.0):
                optimizer.zero_grad()
                loss = sum((parameter**2).sum() for parameter in parameters) * factor
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                keep("norm", torch.nn.utils.clip_grad_norm_(parameters, 1.0))
                scaler.step(optimizer)
                scaler.update()
            keep("parameters", parameters)
            keep("scaler", scaler.state_dict())
            keep("state", optimizer.state_dict())

    def _in_backward(self, kwargs: dict[str, Any], keep: Keep) -> None:
        """A step for each parameter as soon as its gradient is there."""
        parameters = self._parameters()
        owners = {id(parameter): self.info.optim_cls([parameter], **kwargs) for parameter in parameters}

        def step(parameter: torch.Tensor) -> None:
            owners[id(parameter)].step()
            owners[id(parameter)].zero_grad()

        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(step)
        for _ in range(2):
            sum((parameter**2).sum() for parameter in parameters).backward()  # type: ignore[union-attr]
        keep("parameters", parameters)
        keep("states", [owner.state_dict() for owner in owners.values()])

    def _wrong(self, example: Any, keep: Keep) -> None:
        parameters = example.params if example.params is not None else self._parameters()
        optimizer = self.info.optim_cls(parameters, **example.kwargs)
        optimizer.step()
        keep("state", optimizer.state_dict())
