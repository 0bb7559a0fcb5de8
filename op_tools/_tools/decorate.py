"""A tool around a function: on while the function's own code runs.

Generators and coroutines are suspended at each value that they give and at each `await`; calls made meanwhile are not theirs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, ParamSpec, TypeVar, cast

from .._base.core import Switch

P = ParamSpec("P")
R = TypeVar("R")


class _FramesOut:
    """Takes the frames of this file off the traceback of an error that is on its way to the program. Python 3.10 puts them
    back."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        own = _driven.__code__.co_filename
        while error and error.__traceback__ and error.__traceback__.tb_frame.f_code.co_filename == own:
            error.__traceback__ = error.__traceback__.tb_next


_frames_out = _FramesOut()


def _driven(tool: Switch, steps: Any) -> Generator[Any, Any, Any]:
    """Runs a generator, or an awaited object, to its end; the tool, which is on, pauses while it is suspended."""
    advance = functools.partial(steps.send, None)
    while True:
        try:
            with _frames_out:
                value = advance()
        except StopIteration as end:
            return end.value
        try:
            with _frames_out:
                try:
                    tool._pause()
                    answer = yield value
                finally:
                    tool._resume()
        except GeneratorExit:
            steps.close()
            raise
        except BaseException as error:
            advance = functools.partial(steps.throw, error)
        else:
            advance = functools.partial(steps.send, answer)


class _Awaited:
    """The iterator of `await`: _driven()."""

    def __init__(self, tool: Switch, awaited: Any) -> None:
        self._steps = _driven(tool, awaited.__await__())

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._steps


def _of_async_generator(tool: Switch, function: Callable[..., Any]) -> Callable[..., Any]:
    async def inside(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        with tool, _frames_out:
            values = function(*args, **kwargs)
            advance: Callable[[], Any] = functools.partial(values.asend, None)
            while True:
                try:
                    value = await _Awaited(tool, advance())
                except StopAsyncIteration:
                    return
                try:
                    with _frames_out:
                        try:
                            tool._pause()
                            answer = yield value
                        finally:
                            tool._resume()
                except GeneratorExit:
                    await _Awaited(tool, values.aclose())
                    raise
                except BaseException as error:
                    advance = functools.partial(values.athrow, error)
                else:
                    advance = functools.partial(values.asend, answer)

    return inside


def _of_coroutine(tool: Switch, function: Callable[..., Any]) -> Callable[..., Any]:
    async def inside(*args: Any, **kwargs: Any) -> Any:
        with tool, _frames_out:
            return await _Awaited(tool, function(*args, **kwargs))

    return inside


def _of_generator(tool: Switch, function: Callable[..., Any]) -> Callable[..., Any]:
    def inside(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with tool, _frames_out:
            return (yield from _driven(tool, function(*args, **kwargs)))

    return inside


def _of_function(tool: Switch, function: Callable[..., Any]) -> Callable[..., Any]:
    def inside(*args: Any, **kwargs: Any) -> Any:
        with tool, _frames_out:
            return function(*args, **kwargs)

    return inside


def decorated(tool: Switch, function: Callable[P, R]) -> Callable[P, R]:
    """The function with the tool around it, of the same kind as the function is for the inspect module."""
    if inspect.isasyncgenfunction(function):
        kind = _of_async_generator
    elif inspect.iscoroutinefunction(function):
        kind = _of_coroutine
    elif inspect.isgeneratorfunction(function):
        kind = _of_generator
    else:
        kind = _of_function
    return cast("Callable[P, R]", functools.wraps(function)(kind(tool, function)))
