"""The pages of the site about the Python packages: the names that each of them exports, for Sphinx's autodoc (docs/conf.py).

An error is described in rabbit_chx.errors, and any other name that several packages export in the first of PACKAGES that exports it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from types import ModuleType

INDEX: Final = Path(__file__).resolve().parent.parent / "docs" / "python.md"
PACKAGES: Final[list[str]] = re.findall(r"^\| `([\w.]+)` \|", INDEX.read_text(), re.MULTILINE)
MEMBERS: Final = (
    "   :members:\n   :inherited-members: object, BaseException, Exception, tuple, int, str, dict, Enum\n"
)


@cache
def exported(package: str) -> dict[str, Any]:
    """Return what a package exports, by name."""
    module = importlib.import_module(package)
    errors = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == package]
    names = getattr(module, "__all__", None) or [name for name in errors if not name.startswith("_")]
    return {name: getattr(module, name) for name in names}


def home(name: str, value: Any) -> str:
    """Return the package that describes a name."""
    order = ("rabbit_chx.errors", *PACKAGES)
    return next(package for package in order if exported(package).get(name) is value)


def own_names(package: str) -> dict[str, Any]:
    """Return what a package exports and no package before it."""
    return {name: value for name, value in exported(package).items() if home(name, value) == package}


def others(package: str) -> str:
    """Return a sentence with what a package exports and another one describes."""
    elsewhere = {name: home(name, value) for name, value in exported(package).items()}
    links = [f"{{py:obj}}`{name} <{where}.{name}>`" for name, where in elsewhere.items() if where != package]
    return f"It also exports {', '.join(links)}.\n" if links else ""


def constant(name: str, value: Any) -> tuple[str, str]:
    """Return the definition of a type alias or the type of a constant, and what the source says about it."""
    for module in [*sys.modules.values()]:
        if not (ours(module) and vars(module).get(name) is value):
            continue
        body = ast.parse(inspect.getsource(module)).body
        for node, after in zip(body, [*body[1:], None], strict=True):
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name:
                alias = ast.unparse(node.annotation) == "TypeAlias" and node.value
                code = f"{name} = {ast.unparse(alias)}" if alias else f"{name}: {type(value).__name__}"
                doc = getattr(getattr(after, "value", None), "value", "")  # a text after the assignment
                return code, first_sentence(doc) if isinstance(doc, str) else ""
    message = f"no module of the project assigns {name}"
    raise LookupError(message)


def default(value: Any) -> str:
    """Return a default as code."""
    if inspect.isfunction(value) or inspect.isclass(value):
        return value.__name__
    text = repr(value)
    return "..." if " at 0x" in text or text.startswith("<factory") else text


def ours(value: type | ModuleType) -> bool:
    """Whether a class or a module is of this project."""
    module = value.__name__ if inspect.ismodule(value) else value.__module__
    return module.partition(".")[0] in {"rabbit_chx", "spark_connector"}


def first_sentence(doc: str) -> str:
    """Return the first sentence of a docstring as Markdown."""
    paragraph = " ".join(inspect.cleandoc(doc).partition("\n\n")[0].split())
    sentence = re.match(r".*?(?:[.?!](?= [A-Z`])|$)", paragraph)
    return (sentence[0] if sentence else paragraph).replace("``", "`").rstrip(":")


def directives(package: str) -> str:
    """Return the page of a package."""
    lines = [f".. automodule:: {package}\n"]
    for name, value in sorted(own_names(package).items(), key=lambda item: item[0].lower()):
        if inspect.isclass(value):
            kind = "exception" if issubclass(value, BaseException) else "class"
            lines += [f".. auto{kind}:: {package}.{name}\n{MEMBERS}"]
        elif inspect.isfunction(value):
            lines += [f".. autofunction:: {package}.{name}\n"]
        else:
            code, about = constant(name, value)
            lines += [f".. py:data:: {name}\n   :module: {package}\n\n   {about}\n\n   ``{code}``\n"]
    code = "\n".join(lines)
    return f"# {package}\n\n```{{eval-rst}}\n{code}```\n\n{others(package)}"
