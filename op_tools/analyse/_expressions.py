"""Values of expressions, and the names that they use: the part of `_scan.py` that looks at expressions.

A value is followed as far as a file shows it. An expression that no rule knows has no value, but its parts are looked at.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from ._file_facts import MASK, TENSOR, FileFacts, Use, Value

BINARY = {
    ast.Add: "__add__",
    ast.Sub: "__sub__",
    ast.Mult: "__mul__",
    ast.MatMult: "__matmul__",
    ast.Div: "__truediv__",
    ast.FloorDiv: "__floordiv__",
    ast.Mod: "__mod__",
    ast.Pow: "__pow__",
    ast.LShift: "__lshift__",
    ast.RShift: "__rshift__",
    ast.BitAnd: "__and__",
    ast.BitOr: "__or__",
    ast.BitXor: "__xor__",
}
_UNARY = {ast.Invert: "__invert__", ast.USub: "__neg__"}
_COMPARE = {
    ast.Eq: "__eq__",
    ast.NotEq: "__ne__",
    ast.Lt: "__lt__",
    ast.LtE: "__le__",
    ast.Gt: "__gt__",
    ast.GtE: "__ge__",
}
# Functions of these modules give tensors, but for those whose names say otherwise.
_TENSOR_MODULES = {
    "torch",
    "torch.nn.functional",
    "torch.functional",
    "torch.linalg",
    "torch.fft",
    "torch.special",
    "torch.sparse",
    "torch.Tensor",
    "torch.masked",
}
_NO_TENSOR = frozenset(
    "device dtype finfo iinfo load save compile no_grad enable_grad set_grad_enabled inference_mode manual_seed seed typename "
    "numel size dim item tolist numpy stride storage storage_offset data_ptr backward element_size get_device ndimension "
    "register_hook share_memory_ allclose equal nelement type vmap broadcast_shapes result_type can_cast promote_types "
    "Generator Size untyped_storage autocast use_deterministic_algorithms".split()
)
_TENSOR_ATTRIBUTES = frozenset("T mT H mH data grad real imag values indices".split())
_MASKS = frozenset(
    "isnan isinf isfinite eq ne lt le gt ge logical_and logical_or logical_not logical_xor isclose greater less "
    "greater_equal less_equal not_equal bool".split()
)
_TENSOR_CLASSES = frozenset(("torch.Tensor", "torch.nn.Parameter", "torch.nn.parameter.Parameter", "torch.FloatTensor"))
_MODULE_CLASSES = ("torch.nn.Module", "torch.nn.modules.Module", "torch.nn.modules.module.Module")
_PARTIALS = frozenset(("functools.partial", "functools.wraps"))


class Scope:
    """Names of a function, or of the module."""

    def __init__(self, name: str, outer: Scope | None = None, owner: str = "") -> None:
        self.name = name
        self.outer = outer
        self.owner = owner
        self.names: dict[str, Value | None] = {}
        self.cautious = False  # in a branch that is an alternative: an unknown value replaces nothing


class Expressions:
    """State of a pass over a file, and its way with expressions."""

    def __init__(self, facts: FileFacts) -> None:
        self._facts = facts
        self._scope = Scope(f"{facts.module}.<module>")
        self._top = self._scope
        self._later: list[Callable[[], None]] = []
        self._attributes: dict[str, dict[str, Value | None]] = {}
        self._returns: dict[str, Value] = {}

    # --- Names ---------------------------------------------------------------------------------------------------------

    def _bind(self, name: str, value: Value | None) -> None:
        if value is None and self._scope.cautious and self._scope.names.get(name) is not None:
            return
        self._scope.names[name] = value

    def _target(self, target: ast.expr, value: Value | None) -> None:
        if isinstance(target, ast.Name):
            self._bind(target.id, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            part = TENSOR if value is not None and value.is_tensor else None
            for element in target.elts:
                self._target(element, part)
        elif isinstance(target, ast.Starred):
            self._target(target.value, None)
        elif isinstance(target, ast.Attribute):
            owner = self._value(target.value)
            attributes = self._attributes.get(owner.symbol) if owner is not None and owner.kind == "instance" else None
            if attributes is not None and (value is not None or target.attr not in attributes):
                attributes[target.attr] = value
        elif isinstance(target, ast.Subscript):
            self._item_target(target)

    def _item_target(self, target: ast.Subscript) -> None:
        owner, index = self._value(target.value), self._value(target.slice)
        if owner is not None and owner.is_tensor:
            detail = "mask" if index == MASK else ""
            self._use(target, "torch.Tensor.__setitem__", "operator", detail=detail)

    def _look_up(self, name: str) -> Value | None:
        scope: Scope | None = self._scope
        while scope is not None:
            if name in scope.names and (scope is self._scope or not scope.name.startswith("class ")):
                return scope.names[name]
            scope = scope.outer
        if self._facts.stars:  # it may come from any of them
            return Value("name", f"{self._facts.module}.{name}")
        return None

    def _is_module(self, name: str) -> bool:
        """Whether a class of this file is a torch.nn.Module, as far as a file tells: a base of another file may be one."""
        seen = set()
        waiting = [name]
        while waiting:
            base = waiting.pop()
            if base in seen:
                continue
            seen.add(base)
            definition = self._facts.definitions.get(base)
            if definition is None:
                if (
                    base in _MODULE_CLASSES
                    or base.startswith("torch.nn.")
                    or base.endswith(("Module", "Layer", "Model"))
                ):
                    return True
            else:
                waiting += definition.bases
        return False

    def _annotated(self, annotation: ast.expr | None) -> Value | None:
        """The value of an annotation: a tensor, an optional tensor, or an object of a class."""
        if annotation is None:
            return None
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            try:
                return self._annotated(ast.parse(annotation.value, mode="eval").body)
            except (SyntaxError, ValueError):
                return None
        if isinstance(annotation, ast.BinOp):
            return self._annotated(annotation.left) or self._annotated(annotation.right)
        if isinstance(annotation, ast.Subscript):
            place = annotation.value
            name = place.attr if isinstance(place, ast.Attribute) else getattr(place, "id", "")
            return self._annotated(annotation.slice) if name == "Optional" else None
        if not isinstance(annotation, (ast.Name, ast.Attribute)):
            return None
        value = self._silently(annotation)
        if value is None or value.kind != "name":
            return None
        if value.symbol in _TENSOR_CLASSES or (value.symbol.startswith("torch.") and value.symbol.endswith("Tensor")):
            return TENSOR
        return Value("instance", value.symbol)

    def _silently(self, node: ast.expr) -> Value | None:
        if isinstance(node, ast.Name):
            return self._look_up(node.id)
        if isinstance(node, ast.Attribute):
            value = self._silently(node.value)
            return Value("name", f"{value.symbol}.{node.attr}") if value is not None and value.kind == "name" else None
        return None

    # --- Expressions ---------------------------------------------------------------------------------------------------

    def _use(self, node: Any, symbol: str, kind: str, **more: Any) -> None:
        scope: Scope | None = self._scope
        while scope is not None and scope.name.startswith("class "):
            scope = scope.outer
        name = scope.name if scope is not None else self._top.name
        self._facts.uses.append(Use(symbol, kind, node.lineno, node.end_lineno or node.lineno, name, **more))

    def _value(self, node: ast.expr) -> Value | None:
        """The value of an expression; notes the names that it uses."""
        method = _EXPRESSIONS.get(type(node))
        if method is not None:
            value: Value | None = method(self, node)
            return value
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._handed_on(child)
        return None

    def _handed_on(self, node: ast.expr) -> Value | None:
        """An expression whose value goes where it is not followed: a function that is so used may be called."""
        value = self._value(node)
        if value is not None and value.kind == "name" and "." in value.symbol:
            self._use(node, value.symbol, "name")
        return value

    def _name(self, node: ast.Name) -> Value | None:
        return self._look_up(node.id)

    def _attribute(self, node: ast.Attribute) -> Value | None:
        return self._attribute_of(self._value(node.value), node.attr)

    def _attribute_of(self, owner: Value | None, name: str) -> Value | None:
        if owner is None:
            return None
        if owner.is_tensor:
            return TENSOR if name in _TENSOR_ATTRIBUTES else Value("name", f"torch.Tensor.{name}")
        if owner.kind == "instance":
            attributes = self._attributes.get(owner.symbol, {})
            if name in attributes:
                return attributes[name]
            for base in self._bases(owner.symbol):
                if name in self._attributes.get(base, {}):
                    return self._attributes[base][name]
            if name in ("weight", "bias", "data") and owner.symbol.startswith("torch.nn."):
                return TENSOR
        return Value("name", f"{owner.symbol}.{name}")

    def _bases(self, name: str) -> list[str]:
        bases: list[str] = []
        waiting = [name]
        while waiting:
            definition = self._facts.definitions.get(waiting.pop())
            for base in definition.bases if definition is not None else ():
                if base not in bases:
                    bases.append(base)
                    waiting.append(base)
        return bases

    def _binary(self, node: ast.BinOp) -> Value | None:
        # A chain a + b + c leans to the left: without recursion, however long it is.
        chain = [node]
        while isinstance(chain[-1].left, ast.BinOp):
            chain.append(chain[-1].left)
        value = self._value(chain[-1].left)
        for operation in reversed(chain):
            right = self._value(operation.right)
            tensors = [side for side in (value, right) if side is not None and side.is_tensor]
            if tensors:
                self._use(operation, f"torch.Tensor.{BINARY[type(operation.op)]}", "operator")
            is_mask = tensors and MASK in tensors and isinstance(operation.op, (ast.BitAnd, ast.BitOr, ast.BitXor))
            value = MASK if is_mask else TENSOR if tensors else None
        return value

    def _unary(self, node: ast.UnaryOp) -> Value | None:
        value = self._value(node.operand)
        if value is None or not value.is_tensor or type(node.op) not in _UNARY:
            return None
        self._use(node, f"torch.Tensor.{_UNARY[type(node.op)]}", "operator")
        return value

    def _comparison(self, node: ast.Compare) -> Value | None:
        values = [self._value(node.left), *map(self._value, node.comparators)]
        result = None
        for operator, left, right in zip(node.ops, values, values[1:], strict=False):
            name = _COMPARE.get(type(operator))
            if name and any(side is not None and side.is_tensor for side in (left, right)):
                self._use(node, f"torch.Tensor.{name}", "operator")
                result = MASK
        return result

    def _subscript(self, node: ast.Subscript) -> Value | None:
        owner = self._value(node.value)
        self._handed_on(node.slice)
        if owner is None or not owner.is_tensor:
            return None
        self._use(node, "torch.Tensor.__getitem__", "operator")
        return owner

    def _either(self, node: ast.IfExp) -> Value | None:
        self._value(node.test)
        body, other = self._value(node.body), self._value(node.orelse)
        for branch, value in ((node.body, body), (node.orelse, other)):
            if value is not None and value.kind == "name" and body != other:
                self._use(branch, value.symbol, "name")
        return body or other

    def _bool(self, node: ast.BoolOp) -> Value | None:
        values = [self._value(one) for one in node.values]
        return next((one for one in values if one is not None), None)

    def _walrus(self, node: ast.NamedExpr) -> Value | None:
        value = self._value(node.value)
        self._target(node.target, value)
        return value

    def _lambda(self, node: ast.Lambda) -> Value | None:
        names = [one.arg for one in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]]
        before = {name: self._scope.names[name] for name in names if name in self._scope.names}
        self._scope.names.update(dict.fromkeys(names))
        self._handed_on(node.body)
        for name in names:
            del self._scope.names[name]
        self._scope.names.update(before)
        return None

    def _comprehension(self, node: Any) -> Value | None:
        for generator in node.generators:
            over = self._value(generator.iter)
            self._target(generator.target, TENSOR if over is not None and over.is_tensor else None)
            for condition in generator.ifs:
                self._value(condition)
        for part in ("elt", "key", "value"):
            if hasattr(node, part):
                self._handed_on(getattr(node, part))
        return None

    def _call(self, node: ast.Call) -> Value | None:
        # A chain a().b().c() leans to the left too.
        chain = [node]
        while isinstance(chain[-1].func, ast.Attribute) and isinstance(chain[-1].func.value, ast.Call):
            chain.append(chain[-1].func.value)
        value: Value | None = None
        for index, call in enumerate(reversed(chain)):
            function = call.func
            if index == 0:
                owner = self._value(function.value) if isinstance(function, ast.Attribute) else None
                called = (
                    self._attribute_of(owner, function.attr)
                    if isinstance(function, ast.Attribute)
                    else self._value(function)
                )
            else:
                assert isinstance(function, ast.Attribute)
                owner = value
                called = self._attribute_of(owner, function.attr)
            value = self._one_call(call, called, owner)
        return value

    def _one_call(self, node: ast.Call, called: Value | None, owner: Value | None) -> Value | None:
        special = self._special(node, called)
        if special is not None:
            return special[0]
        arguments = [self._handed_on(one) for one in node.args]
        arguments += [self._handed_on(one.value) for one in node.keywords]
        if called is None:
            if isinstance(node.func, ast.Attribute):
                self._note(node, f"?.{node.func.attr}")
            return None
        if called.kind == "instance":
            self._note(node, f"{called.symbol}.__call__")
            handed = any(one is not None and one.is_tensor for one in arguments)
            return TENSOR if called.symbol.startswith("torch.nn.") or handed else None
        if called.is_tensor:
            return None
        self._note(node, called.symbol)
        self._registered(node, owner, arguments)
        return self._result(called.symbol, owner)

    def _registered(self, node: ast.Call, owner: Value | None, arguments: list[Value | None]) -> None:
        """self.register_buffer("mask", tensor) makes an attribute."""
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in ("register_buffer", "register_parameter"):
            return
        name = node.args[0] if node.args else None
        attributes = self._attributes.get(owner.symbol) if owner is not None else None
        if attributes is not None and isinstance(name, ast.Constant) and isinstance(name.value, str):
            attributes[name.value] = TENSOR if len(arguments) > 1 else None

    def _special(self, node: ast.Call, called: Value | None) -> tuple[Value | None] | None:
        """Calls that name something: getattr with a constant, partial, import_module, super."""
        function = node.func
        if isinstance(function, ast.Name) and called is None:
            if function.id == "getattr" and len(node.args) >= 2 and _constant(node.args[1]):
                return (self._attribute_of(self._value(node.args[0]), _constant(node.args[1])),)
            if function.id in ("isinstance", "issubclass"):  # asks for a class, and uses it not
                for argument in node.args[:1]:
                    self._value(argument)
                return (None,)
            if function.id == "__import__" and node.args and _constant(node.args[0]):
                return (Value("name", _constant(node.args[0]).split(".")[0]),)
            if function.id == "super":
                definition = self._facts.definitions.get(self._scope.owner)
                bases = definition.bases if definition is not None else ()
                return (Value("instance", bases[0]) if bases else None,)
        if called is not None and called.kind == "name":
            if called.symbol in _PARTIALS and node.args:
                for argument in [*node.args[1:], *(keyword.value for keyword in node.keywords)]:
                    self._handed_on(argument)
                return (self._value(node.args[0]),)
            if called.symbol == "importlib.import_module" and node.args and _constant(node.args[0]):
                return (Value("name", _constant(node.args[0])),)
        return None

    def _note(self, node: ast.Call, symbol: str) -> None:
        end = (node.end_lineno or node.lineno, (node.end_col_offset or 1) - 1)
        keywords: tuple[tuple[str, str], ...] = ()
        if symbol.startswith(("torch.", "?.")):
            keywords = tuple((one.arg, _source_of(one.value)) for one in node.keywords if one.arg)
        is_open = any(one.arg is None for one in node.keywords) or any(
            isinstance(argument, ast.Starred) for argument in node.args
        )
        self._use(node, symbol, "call", position=end, positional=len(node.args), keywords=keywords, open=is_open)

    def _result(self, symbol: str, owner: Value | None) -> Value | None:
        if symbol in self._returns:
            return self._returns[symbol]
        place, _, name = symbol.rpartition(".")
        if symbol in _TENSOR_CLASSES:
            return TENSOR
        definition = self._facts.definitions.get(symbol)
        if definition is not None:
            return Value("instance", symbol) if definition.is_class else None
        if place in _TENSOR_MODULES:
            if name in _MASKS:
                return MASK
            if name in _NO_TENSOR or name.startswith(("is_", "get_", "set_", "default_", "_")):
                return None
            if name[:1].islower():
                return TENSOR
        if (
            owner is not None
            and owner.kind == "instance"
            and name in ("to", "cuda", "cpu", "eval", "train", "half", "float")
        ):
            return owner
        if name[:1].isupper() and place:
            return Value("instance", symbol)
        return None


def _constant(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _source_of(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, (ast.Constant, ast.Name, ast.Attribute)) else ""


_EXPRESSIONS: dict[type, Callable[..., Value | None]] = {
    ast.Name: Expressions._name,
    ast.Attribute: Expressions._attribute,
    ast.BinOp: Expressions._binary,
    ast.UnaryOp: Expressions._unary,
    ast.Compare: Expressions._comparison,
    ast.Subscript: Expressions._subscript,
    ast.IfExp: Expressions._either,
    ast.BoolOp: Expressions._bool,
    ast.NamedExpr: Expressions._walrus,
    ast.Lambda: Expressions._lambda,
    ast.ListComp: Expressions._comprehension,
    ast.SetComp: Expressions._comprehension,
    ast.GeneratorExp: Expressions._comprehension,
    ast.DictComp: Expressions._comprehension,
    ast.Call: Expressions._call,
}
