"""Output of the command line: results to standard output, progress and errors to standard error."""

import rich.console
from rich.text import Text

__all__ = ["console", "print_error", "print_line", "printable", "results"]

# Progress and notes.
console = rich.console.Console(stderr=True)
results = rich.console.Console()


def print_line(text: str, target: rich.console.Console = console, style: str | None = None) -> None:
    """Print a line without markup or wrapping, as it may contain file names."""
    target.print(printable(text), style=style, markup=False, emoji=False, highlight=False, soft_wrap=True)


def print_error(error: BaseException, target: rich.console.Console = console) -> None:
    """Print an error in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, OSError) and error.filename and error.strerror:
        text = f"{error.filename}: {error.strerror.lower()}"
    target.print(Text.assemble(("error: ", "bold red"), printable(text)), soft_wrap=True)


def printable(text: str) -> str:
    """Return a text with control characters escaped, by which the name of a file could control the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
