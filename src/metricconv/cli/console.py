"""Where the command speaks: results to standard output, progress and errors to standard error."""

import rich.console
from rich.text import Text

# Progress and notes; a pipe of standard output sees results only.
console = rich.console.Console(stderr=True)
results = rich.console.Console()


def say(text: str, where: rich.console.Console = console, style: str | None = None) -> None:
    """Print a line as it is: the name of a file in it may look like markup, and may be longer than the line."""
    where.print(text, style=style, markup=False, emoji=False, highlight=False, soft_wrap=True)


def say_error(error: BaseException, where: rich.console.Console = console) -> None:
    """Print an error in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, OSError) and error.filename and error.strerror:
        text = f"{error.filename}: {error.strerror.lower()}"
    where.print(Text.assemble(("error: ", "bold red"), text), soft_wrap=True)
