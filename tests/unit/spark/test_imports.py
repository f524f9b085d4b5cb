"""The connector imports only public packages of rabbit_chx, and two commands of rabbit_chx import the connector."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[3]
PUBLIC = {"rabbit_chx", "rabbit_chx.errors", "rabbit_chx.lazy_exports"} | {
    f"rabbit_chx.{name}" for name in ("consuming", "kernel", "publishing", "streams", "topology")
}
ON_SPARK = {"pyspark", "pyspark_rabbitmq", "spark_connector"}


def imported(file: Path) -> set[str]:
    """The modules that a file imports, within functions and for type checkers too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def test_the_connector_imports_only_public_packages() -> None:
    for file in [*(ROOT / "spark_connector").glob("*.py"), *(ROOT / "pyspark_rabbitmq").glob("*.py")]:
        private = {name for name in imported(file) if name.startswith("rabbit_chx")} - PUBLIC
        assert not private, file


def test_two_modules_of_rabbit_chx_import_the_connector() -> None:
    files = (ROOT / "rabbit_chx").rglob("*.py")
    users = {file for file in files if {name.partition(".")[0] for name in imported(file)} & ON_SPARK}
    assert users == {ROOT / "rabbit_chx" / "cli" / f"{name}.py" for name in ("demo", "spark")}
