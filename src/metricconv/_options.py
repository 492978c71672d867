"""Options of commands written once: a class of knobs is a dataclass whose fields are options."""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with an option for each field of the classes of knobs that are its parameters."""
    kinds = typing.get_type_hints(command, include_extras=True)
    signature = inspect.signature(command)
    parameters = [p for q in signature.parameters.values() for p in _options(q.replace(annotation=kinds[q.name]))]

    @functools.wraps(command)
    def called(**given: Any) -> None:
        command(**{name: _gathered(kinds[name], name, given) for name in signature.parameters})

    required_first = sorted(parameters, key=lambda p: p.default is not inspect.Parameter.empty)
    called.__signature__ = signature.replace(parameters=required_first)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    return called


def _options(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    """Return the parameters of the fields of a class of knobs, and of those within it; any other as it is."""
    kind = parameter.annotation
    if not dataclasses.is_dataclass(kind):
        return [parameter]
    kinds = typing.get_type_hints(kind, include_extras=True)
    fields = [
        parameter.replace(name=f.name, annotation=kinds[f.name], default=f.default) for f in dataclasses.fields(kind)
    ]
    return [option for field in fields for option in _options(field)]


def _gathered(kind: Any, name: str, given: dict[str, Any]) -> Any:
    """Return the value of a parameter: that of its option, or knobs made of the values of theirs."""
    if not dataclasses.is_dataclass(kind):
        return given[name]
    kinds = typing.get_type_hints(kind, include_extras=True)
    return kind(**{f.name: _gathered(kinds[f.name], f.name, given) for f in dataclasses.fields(kind)})  # type: ignore[operator]
