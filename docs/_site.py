"""What the site takes from outside docs/: the tables and pictures of results/ and benchmarks/, whatever is there.

A line ``<!-- all of results -->`` in a page becomes every Markdown file below that folder, its headings two levels
down and its pictures beside the page. Links out of docs/ are those of the repository: pictures move into the site, the
names of pages stay as text.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "results")
PLACE = re.compile(r"^<!-- all of (\w+) -->$", re.MULTILINE)
OUTSIDE = rf"\((\.\./)((?:\.\./)*(?:{'|'.join(FOLDERS)})/[^)]+\.%s)\)"
PAGE, PICTURE = re.compile(r"\[([^\]]+)\]" + OUTSIDE % "md"), re.compile(r"\]" + OUTSIDE % "png")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pictures of tables."""
    for folder in FOLDERS:
        for picture in sorted((ROOT / folder).rglob("*.png")):
            name = picture.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put tables where a page asks for them."""
    markdown = PICTURE.sub(r"](\2)", PAGE.sub(r"\1", markdown))
    return PLACE.sub(lambda match: _tables(ROOT / match[1]), markdown)


def _tables(folder: Path) -> str:
    """Return all tables of a folder, those of the README of a part first."""
    found = sorted(folder.rglob("*.md"), key=lambda path: (path.parent, path.name != "README.md", path.name))
    return "\n\n".join(_table(path) for path in found)


def _table(path: Path) -> str:
    text = path.read_text(encoding="utf-8").strip()
    if not text.startswith("#"):
        text = f"# {path.stem}\n\n{text}"
    text = re.sub(r"^(#+ )", r"##\1", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]+)\]\((?!https?:|#)[^)]+\.(?:csv|md)\)", r"\1", text)  # files that the site has not
    here = path.parent.relative_to(ROOT).as_posix()
    return re.sub(r"\]\((?!https?:|#)([^)]+\.png)\)", rf"]({here}/\1)", text)
