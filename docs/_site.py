"""Include the tables and figures of results/ and benchmarks/, which are outside of docs/, in the site.

A line ``<!-- all of results -->`` in a page is replaced by every Markdown file below that folder, with headings two
levels down. Links from docs/ to these folders work in the repository. In the site, their figures are copied, and links
to their pages become plain text.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "results")
MARKER = re.compile(r"^<!-- all of (\w+) -->$", re.MULTILINE)
OUTSIDE = rf"\((\.\./)((?:\.\./)*(?:{'|'.join(FOLDERS)})/[^)]+\.%s)\)"
PAGE, PICTURE = re.compile(r"\[([^\]]+)\]" + OUTSIDE % "md"), re.compile(r"\]" + OUTSIDE % "png")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the figures of the tables."""
    for folder in FOLDERS:
        for figure in sorted((ROOT / folder).rglob("*.png")):
            name = figure.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(figure)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the marker of a page by the tables of its folder."""
    markdown = PICTURE.sub(r"](\2)", PAGE.sub(r"\1", markdown))
    return MARKER.sub(lambda match: _tables(ROOT / match[1]), markdown)


def _tables(folder: Path) -> str:
    """Return all tables of a folder, the README of each subfolder first."""
    found = sorted(folder.rglob("*.md"), key=lambda path: (path.parent, path.name != "README.md", path.name))
    return "\n\n".join(_table(path) for path in found)


def _table(path: Path) -> str:
    text = path.read_text(encoding="utf-8").strip()
    if not text.startswith("#"):
        text = f"# {path.stem}\n\n{text}"
    text = re.sub(r"^(#+ )", r"##\1", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]+)\]\((?!https?:|#)[^)]+\.(?:csv|md)\)", r"\1", text)  # files that are not in the site
    here = path.parent.relative_to(ROOT).as_posix()
    return re.sub(r"\]\((?!https?:|#)([^)]+\.png)\)", rf"]({here}/\1)", text)
