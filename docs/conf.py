"""How Sphinx makes a site of these pages, by `make site`. The pages are plain Markdown, which a repository shows as well.

They link to each other and to files of the project, so the whole project is the source, but Sphinx reads only the pages below.
The sidebar has the order of docs/README.md.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent
PROJECT_PAGES = [
    "examples/README",
    "examples/ci/README",
    "examples/monitoring/README",
    "benchmarks/README",
    "ARCHITECTURE",
    "CONTRIBUTING",
    "SECURITY",
    "CHANGELOG",
]

project = "rabbit-chx"
root_doc = "README"
include_patterns = ["README.md", "docs/*.md", *(f"{page}.md" for page in PROJECT_PAGES)]
exclude_patterns = [".*", "build", "dist"]  # not even looked into

extensions = ["myst_parser"]
myst_heading_anchors = 6  # as a repository names them
smartquotes = False

html_theme = "furo"
html_title = project
html_static_path = html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False


def sidebar(index: str) -> str:
    """Return the tables of contents that make the sidebar, from the page that lists all others."""
    parts = re.findall(r"^\*\*([^*]+)\*\*$(.*?)(?=^\*\*|\Z)", index, re.DOTALL | re.MULTILINE)
    captions = {
        caption: re.findall(r"^\| \[.+?\]\((.+?)\.md\)", text, re.MULTILINE) for caption, text in parts
    }
    trees = {caption: [f"docs/{page}" for page in pages] for caption, pages in captions.items()}
    trees["The project"] = ["docs/README", *PROJECT_PAGES]
    return "".join(
        f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(pages) + "\n```"
        for caption, pages in trees.items()
    )


def add_sidebar(_: Sphinx, page: str, source: list[str]) -> None:
    """Add it to the first page, as it is read."""
    if page == root_doc:
        source[0] += sidebar((ROOT / "docs/README.md").read_text())


def finish(app: Sphinx, error: Exception | None) -> None:
    """Bring along what the HTML in the pages names, and let a visitor begin with the first page."""
    if error:
        return
    shutil.copytree(ROOT / "docs/pictures", app.outdir / "docs/pictures", dirs_exist_ok=True)
    shutil.copyfile(app.outdir / f"{root_doc}.html", app.outdir / "index.html")


def setup(app: Sphinx) -> None:
    """Connect both."""
    app.connect("source-read", add_sidebar)
    app.connect("build-finished", finish)
