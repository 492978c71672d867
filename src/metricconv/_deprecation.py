"""Deprecated arguments: they work for one minor version, with a warning that names the new one.

Policy: an argument that is renamed in version 0.n is accepted in 0.n, and removed in 0.(n + 1). See the changelog.
"""

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def renamed_arguments(**new_names: str) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Return a decorator that accepts old keyword arguments with a DeprecationWarning: ``old="new"`` for each.

    >>> @renamed_arguments(colour="color")
    ... def draw(color: str = "black") -> str:
    ...     return color
    >>> with warnings.catch_warnings(record=True, action="always") as caught:
    ...     draw(colour="red")
    'red'
    >>> print(caught[0].message)
    `colour` of draw is deprecated: use `color`
    """

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        name = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def wrapper(*args: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
            for old in new_names.keys() & options.keys():
                new = new_names[old]
                if new in options:
                    raise TypeError(f"{name} got both `{new}` and `{old}`, its deprecated name")
                warnings.warn(f"`{old}` of {name} is deprecated: use `{new}`", DeprecationWarning, stacklevel=2)
                options[new] = options.pop(old)
            return function(*args, **options)

        return wrapper

    return decorate
