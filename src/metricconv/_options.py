"""Command-line options shared by commands: each field of an options dataclass becomes an option."""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any


def expand_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that has an option for each field of its parameters that are dataclasses."""
    types = typing.get_type_hints(command, include_extras=True)
    signature = inspect.signature(command)
    parameters = [p for q in signature.parameters.values() for p in _expand(q.replace(annotation=types[q.name]))]

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        command(**{name: _build(types[name], name, values) for name in signature.parameters})

    required_first = sorted(parameters, key=lambda p: p.default is not inspect.Parameter.empty)
    wrapper.__signature__ = signature.replace(parameters=required_first)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper


def _expand(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    """Return one parameter per field of a dataclass, nested ones expanded too; other parameters unchanged."""
    annotation = parameter.annotation
    if not dataclasses.is_dataclass(annotation):
        return [parameter]
    types = typing.get_type_hints(annotation, include_extras=True)
    fields = [
        parameter.replace(name=f.name, annotation=types[f.name], default=f.default)
        for f in dataclasses.fields(annotation)
    ]
    return [option for field in fields for option in _expand(field)]


def _build(annotation: Any, name: str, values: dict[str, Any]) -> Any:
    """Return the value of a parameter: that of its option, or a dataclass built from its options."""
    if not dataclasses.is_dataclass(annotation):
        return values[name]
    types = typing.get_type_hints(annotation, include_extras=True)
    return annotation(**{f.name: _build(types[f.name], f.name, values) for f in dataclasses.fields(annotation)})  # type: ignore[operator]
