"""Docstrings as the site shows them: doctests in colour, and mathematics kept from being read as Markdown."""

import re
from typing import Any

import griffe

# Inline code, which stays as it is, and signs that Markdown would take for emphasis.
_CODE_OR_SIGN = re.compile(r"(`+.+?`+)|([*_])")
_ARGUMENT = re.compile(r"( {4}\S.*?: )(.*)")
_FLAG = re.compile(r"\s*# doctest: .*$")


class Readable(griffe.Extension):
    """Rewrites the docstring of every object before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = readable(obj.docstring.value)


def readable(text: str) -> str:
    """Return a docstring with its doctests fenced and the signs of its prose escaped."""
    return "\n\n".join(map(_block, re.split(r"\n[ ]*\n", text)))


def _block(text: str) -> str:
    """Rewrite what stands between two blank lines."""
    lines = text.splitlines()
    if text.startswith(">>>"):
        return "\n".join(["```pycon", *(_FLAG.sub("", line) for line in lines), "```"])
    if text.startswith("    ") or text == "::":  # a formula or drawing, which is code to Markdown
        return text if text != "::" else ""
    if lines[:1] == ["Args:"]:
        return "\n".join([lines[0], *map(_argument, lines[1:])])
    return _escaped(text)


def _argument(line: str) -> str:
    """Escape what is said of an argument, and leave its name."""
    named = _ARGUMENT.fullmatch(line)
    return named[1] + _escaped(named[2]) if named else _escaped(line)


def _escaped(text: str) -> str:
    return _CODE_OR_SIGN.sub(lambda found: found[1] or "\\" + found[2], text)
