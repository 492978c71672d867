"""Prepare docstrings for the site: highlight doctests, and escape mathematics that Markdown would interpret."""

import re
from typing import Any

import griffe

# Inline code, which is kept unchanged, and characters that Markdown would interpret as emphasis.
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
    """Return a docstring with fenced doctests and escaped prose."""
    return "\n\n".join(map(_block, re.split(r"\n[ ]*\n", text)))


def _block(text: str) -> str:
    """Rewrite one block of text between blank lines."""
    lines = text.splitlines()
    if text.startswith(">>>"):
        return "\n".join(["```pycon", *(_FLAG.sub("", line) for line in lines), "```"])
    if text.startswith("    ") or text == "::":  # a formula or diagram, which Markdown renders as code
        return text if text != "::" else ""
    if lines[:1] in (["Args:"], ["Attributes:"]):
        return "\n".join([lines[0], *map(_argument, lines[1:])])
    return _escaped(text)


def _argument(line: str) -> str:
    """Escape the description of an argument or attribute, but not its name."""
    named = _ARGUMENT.fullmatch(line)
    return named[1] + _escaped(named[2]) if named else _escaped(line)


def _escaped(text: str) -> str:
    return _CODE_OR_SIGN.sub(lambda found: found[1] or "\\" + found[2], text)
