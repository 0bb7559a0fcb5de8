"""Reads a Python file into facts: which names it uses, in which function, on which values.

A single pass over the syntax tree in the order of execution: the module first, then its functions, constructors before other
methods, so that the attributes of `self` are known. A symbol of another file stays a name for `_project.py`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any

from ._expressions import BINARY, Expressions, Scope
from ._file_facts import TENSOR, Definition, FileFacts, Value


def scan(tree: ast.Module, file: str, module: str, is_package: bool = False) -> FileFacts:
    """The facts of a syntax tree."""
    return _Scanner(FileFacts(file, module, is_package)).run(tree)


class _Scanner(Expressions):
    """The statements of a pass."""

    def run(self, tree: ast.Module) -> FileFacts:
        self._body(tree.body)
        while self._later:
            waiting, self._later = self._later, []
            for work in waiting:
                work()
        for name, value in self._top.names.items():
            own = f"{self._facts.module}.{name}"
            if value is not None and value.kind == "name":
                self._facts.exports[name] = value.symbol
            elif own in self._facts.definitions:
                self._facts.exports[name] = own
            else:
                self._facts.values.append(name)
        return self._facts

    # --- Statements ----------------------------------------------------------------------------------------------------

    def _body(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            method = _STATEMENTS.get(type(statement))
            if method is not None:
                method(self, statement)
            else:
                self._children(statement)

    def _children(self, node: ast.AST) -> None:
        """A statement without a rule of its own: its expressions, then its statements."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._handed_on(child)
            elif isinstance(child, ast.stmt):
                self._body([child])
            elif isinstance(child, (ast.match_case, ast.pattern)):
                self._children(child)

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.asname:
                self._bind(alias.asname, Value("name", alias.name))
            else:
                top = alias.name.split(".")[0]
                self._bind(top, Value("name", top))

    def _import_from(self, node: ast.ImportFrom) -> None:
        place = node.module or ""
        if node.level:
            parts = self._facts.module.split(".")
            keep = len(parts) - node.level + (1 if self._facts.is_package else 0)
            place = ".".join([*parts[: max(keep, 0)], *([node.module] if node.module else [])])
        for alias in node.names:
            if alias.name == "*":
                self._facts.stars.append(place)
            else:
                self._bind(alias.asname or alias.name, Value("name", f"{place}.{alias.name}" if place else alias.name))

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            self._handed_on(decorator)
        every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                self._handed_on(default)
        name = self._own_name(node.name)
        self._facts.definitions[name] = Definition(
            name, node.lineno, node.end_lineno or node.lineno, tuple(one.arg for one in every)
        )
        self._bind(node.name, Value("name", name))
        outer = self._scope
        owner = outer.owner if outer.name.startswith("class ") else ""
        self._later.append(lambda: self._function_body(node, name, outer, owner))

    def _function_body(self, node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, outer: Scope, owner: str) -> None:
        scope = Scope(name, outer, owner or outer.owner)
        self._scope = scope
        arguments = [*node.args.posonlyargs, *node.args.args]
        is_static = any(isinstance(one, ast.Name) and one.id == "staticmethod" for one in node.decorator_list)
        forward = owner and node.name == "forward" and self._is_module(owner)
        required = len(arguments) - len(node.args.defaults)
        for index, argument in enumerate([*arguments, *node.args.kwonlyargs]):
            value = self._annotated(argument.annotation)
            if owner and index == 0 and not is_static:
                value = Value("instance", owner)
            elif forward and value is None and argument.annotation is None and index < required:
                value = TENSOR
            scope.names[argument.arg] = value
        for rest in (node.args.vararg, node.args.kwarg):
            if rest is not None:
                scope.names[rest.arg] = None
        self._body(node.body)
        self._scope = self._top

    def _class(self, node: ast.ClassDef) -> None:
        for decorator in node.decorator_list:
            self._handed_on(decorator)
        bases = [value.symbol for base in node.bases if (value := self._value(base)) and value.kind == "name"]
        for keyword in node.keywords:
            self._handed_on(keyword.value)
        name = self._own_name(node.name)
        outer = self._scope
        definition = Definition(name, node.lineno, node.end_lineno or node.lineno, bases=tuple(bases), is_class=True)
        self._facts.definitions[name] = definition
        self._attributes[name] = {}
        # The statements of a class run where it stands; its methods later, its constructor first.
        self._scope = Scope(f"class {outer.name}", outer, name)
        count = len(self._later)
        self._body(sorted(node.body, key=lambda one: isinstance(one, ast.FunctionDef) and one.name != "__init__"))
        methods, self._later = self._later[count:], self._later[:count]
        self._attributes[name].update(self._scope.names)
        self._later += [*methods, lambda: self._publish(definition)]
        self._scope = outer
        self._bind(node.name, Value("name", name))

    def _publish(self, definition: Definition) -> None:
        """Hands the names among a class's attributes to other files."""
        for key, value in self._attributes[definition.name].items():
            if value is not None and value.kind == "name":
                definition.attributes[key] = value.symbol
            elif value is not None and value.kind == "instance":
                definition.attributes[key] = f"{value.symbol}()"

    def _own_name(self, name: str) -> str:
        scope = self._scope
        if scope.name.startswith("class "):
            return f"{scope.owner}.{name}"
        return f"{self._facts.module}.{name}" if scope is self._top else f"{scope.name}.{name}"

    def _assign(self, node: ast.Assign) -> None:
        if isinstance(node.value, ast.Tuple) and self._pairwise(node.targets, node.value.elts):
            return
        value = self._value(node.value)
        for target in node.targets:
            self._target(target, value)

    def _pairwise(self, targets: list[ast.expr], values: list[ast.expr]) -> bool:
        """a, b = x, y"""
        target = targets[0]
        if len(targets) > 1 or not isinstance(target, ast.Tuple) or len(target.elts) != len(values):
            return False
        if any(isinstance(one, ast.Starred) for one in (*target.elts, *values)):
            return False
        for element, value in zip(target.elts, list(map(self._value, values)), strict=True):
            self._target(element, value)
        return True

    def _annotated_assign(self, node: ast.AnnAssign) -> None:
        value = self._value(node.value) if node.value is not None else None
        self._target(node.target, value or self._annotated(node.annotation))

    def _augmented(self, node: ast.AugAssign) -> None:
        left, right = self._value(node.target), self._value(node.value)
        if (left is not None and left.is_tensor) or (right is not None and right.is_tensor):
            self._use(node, f"torch.Tensor.{BINARY[type(node.op)]}", "operator")
            self._target(node.target, TENSOR)

    def _for(self, node: ast.For | ast.AsyncFor) -> None:
        over = self._value(node.iter)
        self._target(node.target, TENSOR if over is not None and over.is_tensor else None)
        self._body(node.body)
        self._body(node.orelse)

    def _if(self, node: ast.If | ast.While) -> None:
        self._value(node.test)
        self._body(node.body)
        self._alternative(node.orelse)

    def _try(self, node: Any) -> None:
        self._body(node.body)
        for handler in node.handlers:
            if handler.type is not None:
                self._handed_on(handler.type)
            self._alternative(handler.body)
        self._body(node.orelse)
        self._body(node.finalbody)

    def _alternative(self, statements: list[ast.stmt]) -> None:
        before, self._scope.cautious = self._scope.cautious, True
        self._body(statements)
        self._scope.cautious = before

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            value = self._value(item.context_expr)
            if item.optional_vars is not None:
                self._target(item.optional_vars, value if value is not None and value.kind == "instance" else None)
        self._body(node.body)

    def _return(self, node: ast.Return) -> None:
        if node.value is None:
            return
        value = self._handed_on(node.value)
        if value is not None and value.kind != "name":
            self._returns.setdefault(self._scope.name, value)

    def _expression(self, node: ast.Expr) -> None:
        self._value(node.value)


_STATEMENTS: dict[type, Callable[..., None]] = {
    ast.Import: _Scanner._import,
    ast.ImportFrom: _Scanner._import_from,
    ast.FunctionDef: _Scanner._function,
    ast.AsyncFunctionDef: _Scanner._function,
    ast.ClassDef: _Scanner._class,
    ast.Assign: _Scanner._assign,
    ast.AnnAssign: _Scanner._annotated_assign,
    ast.AugAssign: _Scanner._augmented,
    ast.For: _Scanner._for,
    ast.AsyncFor: _Scanner._for,
    ast.If: _Scanner._if,
    ast.While: _Scanner._if,
    ast.Try: _Scanner._try,
    ast.With: _Scanner._with,
    ast.AsyncWith: _Scanner._with,
    ast.Return: _Scanner._return,
    ast.Expr: _Scanner._expression,
}
if hasattr(ast, "TryStar"):
    _STATEMENTS[ast.TryStar] = _Scanner._try
