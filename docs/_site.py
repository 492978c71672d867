"""Add the pages and figures of results/ and benchmarks/, which are outside of docs/, to the site.

They have the same path in the site as in the repository. Links between them and docs/ work in both; links to files that
are not in the site, such as CSVs, become plain text. Formulas in LaTeX, $$…$$ and $`…`$ as on GitHub, become MathML,
which browsers display without scripts or fonts of other servers.
"""

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

import latex2mathml.converter
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "results")
FORMULA = re.compile(r"^\$\$\n(.+?)\n\$\$$|\$`([^`]+)`\$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and figures."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".md", ".png"):
                files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links of the repository to those of the site, and formulas to MathML."""
    name = page.file.src_uri
    outside = name.split("/")[0] in FOLDERS
    folder = PurePosixPath(name).parent if outside else PurePosixPath("docs", name).parent

    def rewritten(link: re.Match[str]) -> str:
        kind, text, target, anchor = link.groups()
        path = normpath((folder / target).as_posix())
        source = path.removeprefix("docs/")
        if files.get_file_from_path(source) is None:
            return link[0] if not outside and path.startswith("docs/") else text
        return f"{kind}[{text}]({relpath(source, PurePosixPath(name).parent.as_posix())}{anchor or ''})"

    return FORMULA.sub(_mathml, LINK.sub(rewritten, markdown))


def _mathml(formula: re.Match[str]) -> str:
    display, inline = formula.groups()
    if display:
        return f"<div>{latex2mathml.converter.convert(display, display='block')}</div>"
    return latex2mathml.converter.convert(inline)
