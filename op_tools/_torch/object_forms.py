"""Objects that are more than plain values, in captured files: dataclasses, named tuples, arrays and numbers of numpy.

Called from bindings/python_objects.cpp. A file is data from somewhere: it names a class, and the class is looked up among the
modules that are imported already. Nothing is imported, no code of the class runs (__init__, __new__, property setters),
and classes that do something when an object of theirs is freed (__del__) are refused.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
from typing import Any

import torch

from .._base.core import log_warn

DATACLASS, ARRAY, NUMBER = "__dataclass__", "__ndarray__", "__numpy_number__"


def find_class(name: str) -> type | None:
    """The class called `module.Name` among the modules that are imported already."""
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        at: object = sys.modules.get(".".join(parts[:count]))
        for part in parts[count:]:
            # Not getattr(): a module may import on demand.
            at = vars(at).get(part) if isinstance(at, (type, types.ModuleType)) else None
        if isinstance(at, type):
            return at
    return None


def class_name(cls: type) -> str:
    """The name by which find_class() finds it."""
    return f"{cls.__module__}.{cls.__qualname__}"


def form_of(value: Any) -> tuple[str, Any] | str:
    """The form of an object in a file: a tag and plain values. Else a text: why it has no form.

    Args:
        value: an object of a class that the C++ side does not know.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(type(value), (numpy.ndarray, numpy.generic)):
        return _form_of_array(value, NUMBER if isinstance(value, numpy.generic) else ARRAY)
    if not isinstance(value, type) and dataclasses.is_dataclass(value):
        return _form_of_dataclass(value)
    why = "a callable has no form in a file" if callable(value) else "objects of this type have no form in a file"
    return f"{name}: {why}" if (name := _distributed_name(value)) else why


def _distributed_name(value: Any) -> str:
    """Of a process group or a reduction: recordings of several ranks are compared by it (src/record/call_parts.cpp)."""
    distributed = sys.modules.get("torch._C._distributed_c10d")
    if distributed is None:
        return ""
    if isinstance(value, distributed.ProcessGroup):
        return f"{value.group_name}, {value.size()} ranks"
    if not isinstance(value, distributed.ReduceOp):  # its own members, too
        return ""
    return str(getattr(value, "op", value).name.lower())


def _form_of_array(value: Any, tag: str) -> tuple[str, Any] | str:
    dtype = getattr(torch, value.dtype.name, None)
    if value.dtype.kind not in "biufc" or not value.dtype.isnative or not isinstance(dtype, torch.dtype):
        return f"torch has no dtype for numpy's {value.dtype}"
    return tag, (dtype, torch.Size(value.shape), value.tobytes())


def _form_of_dataclass(value: Any) -> tuple[str, Any] | str:
    cls: Any = type(value)
    name = class_name(cls)
    if find_class(name) is not cls:
        return "its class cannot be found again by its name"
    if why := _why_not_made(cls):
        return why
    fields = [field.name for field in dataclasses.fields(value)]
    if not set(getattr(value, "__dict__", ())) <= set(fields):
        return "a dataclass that holds more than its fields"
    try:
        # Past __getattr__ and __getattribute__ of the class.
        return DATACLASS, (name, {field: object.__getattribute__(value, field) for field in fields})
    except AttributeError as error:
        return f"a dataclass without the value of a field: {error}"


@functools.cache
def _why_not_made(cls: Any) -> str:
    """Why object.__new__() and its fields do not make an object of the class; empty: they do."""
    if any("__new__" in vars(base) for base in cls.__mro__ if base is not object):
        return "a dataclass that makes its objects itself"
    if hasattr(cls, "__del__"):
        return "a dataclass that does something when it is freed"
    for field in dataclasses.fields(cls):
        for base in cls.__mro__:
            descriptor = vars(base).get(field.name)
            if hasattr(type(descriptor), "__set__") and not isinstance(descriptor, types.MemberDescriptorType):
                return f"a dataclass whose field {field.name} is a property"
    return ""


def from_form(tag: str, content: Any) -> Any:
    """The object that form_of() described.

    Args:
        tag: which kind of object.
        content: plain values from a file.

    Returns:
        the object; the fields as a dict, with a warning, where the class is not there or has changed;
        NotImplemented for tags that form_of() never makes.
    """
    match tag, content:
        case "__dataclass__", (str() as name, dict() as fields) if all(isinstance(key, str) for key in fields):
            return _dataclass(name, fields)
        case (("__ndarray__" | "__numpy_number__"), (torch.dtype() as dtype, torch.Size() as shape, bytes() as data)):
            return _array(tag, dtype, shape, data)
    return NotImplemented


def _dataclass(name: str, fields: dict[str, Any]) -> Any:
    cls = find_class(name)
    if cls is None or not dataclasses.is_dataclass(cls):
        _warn_once(name, "there is no such dataclass in an imported module")
        return fields
    why = _why_not_made(cls)
    if not why and {field.name for field in dataclasses.fields(cls)} != set(fields):
        why = "it has other fields here"
    if why:
        _warn_once(name, why)
        return fields
    instance = object.__new__(cls)
    for field, value in fields.items():
        object.__setattr__(instance, field, value)
    return instance


def _array(tag: str, dtype: torch.dtype, shape: torch.Size, data: bytes) -> Any:
    numpy = sys.modules.get("numpy")
    count = shape.numel() if all(size >= 0 for size in shape) else -1
    if numpy is None or count * dtype.itemsize != len(data):
        return NotImplemented
    try:
        array = numpy.frombuffer(data, dtype=str(dtype).removeprefix("torch.")).reshape(tuple(shape)).copy()
    except (TypeError, ValueError):
        return NotImplemented  # a dtype that numpy does not have
    return array if tag == ARRAY else array[()]


def named_tuple(name: str, items: tuple[Any, ...]) -> tuple[Any, ...]:
    """The named tuple of the class with that name; `items` themselves where there is no such class of that size."""
    cls = find_class(name)
    if cls is None or not issubclass(cls, tuple) or hasattr(cls, "__del__"):
        return items
    if cls.__module__ == "torch.return_types" and getattr(cls, "n_sequence_fields", None) == len(items):
        return cls(items)  # made by C code of Python
    fields = getattr(cls, "_fields", None)
    if not isinstance(fields, tuple) or len(fields) != len(items):
        return items
    return tuple.__new__(cls, items)


@functools.cache
def _warn_once(name: str, why: str) -> None:
    log_warn(f"a {name} of a captured file is loaded as a dict: {why}; import its module first")
