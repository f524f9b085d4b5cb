"""How Sphinx makes a site of these pages, by `make site`. The pages are plain Markdown, which a repository shows as well.

They link to each other and to files of the project, so the whole project is the source, but Sphinx reads only the pages below.
The sidebar has the order of docs/README.md.
"""

from __future__ import annotations

import builtins
import inspect
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx import addnodes
from sphinx.errors import ExtensionError

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import python_pages  # noqa: E402 # of scripts

from rabbit_chx import __version__  # noqa: E402

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
include_patterns = ["README.md", "docs/*.md", "docs/python/*.md", *(f"{page}.md" for page in PROJECT_PAGES)]
exclude_patterns = [".*", "build", "dist"]  # not even looked into

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 6  # as a repository names them
smartquotes = False
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
maximum_signature_line_length = 100
add_module_names = False
suppress_warnings = ["ref.python"]  # a name that several classes have gets no link

html_theme = "furo"
html_title = f"{project} {__version__}"
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
    """Add it to the first page, as it is read, and the pages of the packages to the page that lists them."""
    if page == root_doc:
        source[0] += sidebar((ROOT / "docs/README.md").read_text())
    if page == "docs/python":
        packages = "\n".join(f"python/{package}" for package in python_pages.PACKAGES)
        linked = re.sub(r"^\| `([\w.]+)` \|", r"| [\1](python/\1.md) |", source[0], flags=re.MULTILINE)
        source[0] = f"{linked}\n\n```{{toctree}}\n:hidden:\n\n{packages}\n```"


def write_package_pages(_: Sphinx) -> None:
    """Write a page for each package, made of its docstrings."""
    folder = ROOT / "docs/python"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for package in python_pages.PACKAGES:
        (folder / f"{package}.md").write_text(python_pages.directives(package), encoding="utf-8")


def show_defaults(
    _: Sphinx, _kind: str, _name: str, value: Any, _options: Any, signature: str | None, result: str | None
) -> tuple[str | None, str | None]:
    """Replace the name of a constant of the project by its value, where it is the default of a parameter."""
    function = value.__init__ if inspect.isclass(value) else value
    names = getattr(inspect.unwrap(function), "__globals__", {})

    def shown(found: re.Match[str]) -> str:
        return f"= {python_pages.default(names[found[1]])}" if found[1] in names else found[0]

    return signature and re.sub(r"= (_?[A-Z][A-Z_]+)\b", shown, signature), result


def mark_code(_: Sphinx, _kind: str, _name: str, _value: Any, _options: Any, lines: list[str]) -> None:
    """Mark the indented blocks of a docstring as code, and leave out what Python itself says about a named tuple."""
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()
    for index in range(len(lines) - 1, 0, -1):
        starts = not lines[index - 1] and lines[index].startswith("    ")
        before = next((line for line in reversed(lines[:index]) if line), "")
        if starts and before and not before.startswith((" ", ">>>")):
            lines[index:index] = ["::", ""]


def tidy_signatures(_: Sphinx, tree: nodes.document) -> None:
    """Types such as ``bytes`` lead nowhere, although classes have attributes of that name; a private default is no value."""
    for default in list(tree.findall(nodes.inline)):
        if "default_value" in default["classes"] and default.astext().startswith("_"):
            default.children = [nodes.Text("...")]
    for link in list(tree.findall(addnodes.pending_xref)):
        if link.get("refdomain") == "py" and hasattr(builtins, link["reftarget"]):
            link.replace_self(link.children)


def finish(app: Sphinx, error: Exception | None) -> None:
    """Bring along what the HTML in the pages names, and let a visitor begin with the first page."""
    if error:
        return
    found = app.env.get_domain("py").objects
    names = [
        f"{package}.{name}" for package in python_pages.PACKAGES for name in python_pages.own_names(package)
    ]
    if missing := [name for name in names if name not in found]:
        raise ExtensionError(f"no page describes {', '.join(missing)}")
    shutil.copytree(ROOT / "docs/pictures", app.outdir / "docs/pictures", dirs_exist_ok=True)
    shutil.copyfile(app.outdir / f"{root_doc}.html", app.outdir / "index.html")


def setup(app: Sphinx) -> None:
    """Connect them."""
    app.connect("builder-inited", write_package_pages)
    app.connect("source-read", add_sidebar)
    app.connect("autodoc-process-signature", show_defaults)
    app.connect("autodoc-process-docstring", mark_code, priority=400)  # before napoleon
    app.connect("doctree-read", tidy_signatures)
    app.connect("build-finished", finish)
