"""Wheels of installed packages, so that a test can run ``pip install`` as in the docs without a download."""

from __future__ import annotations

import zipfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[1]
OWN = ("rabbit_chx", "spark_connector", "pyspark_rabbitmq")
LEFT_OUT = {"__pycache__", "tests", "include"}
"""Large folders of other packages that are not needed at run time."""


def installed(requirement: str) -> Iterable[metadata.Distribution]:
    """The installed distributions that a requirement needs, itself included."""
    found: dict[tuple[str, str], metadata.Distribution] = {}
    waiting = [Requirement(requirement)]
    while waiting:
        wanted = waiting.pop()
        for extra in {"", *wanted.extras} - {extra for name, extra in found if name == wanted.name}:
            one = found[wanted.name, extra] = metadata.distribution(wanted.name)
            needs = map(Requirement, one.requires or [])
            waiting += [need for need in needs if not need.marker or need.marker.evaluate({"extra": extra})]
    return {one.name: one for one in found.values()}.values()


def write_wheel(one: metadata.Distribution, folder: Path) -> Path:
    """Write the wheel of an installed distribution; this project's own is made from the checkout."""
    files = {name: Path(one.locate_file(name)) for name in map(str, one.files or ())}
    files = {name: path for name, path in files.items() if name[:2] != ".." and path.suffix != ".pth"}
    if one.name == "rabbit-chx":
        own = [path for package in OWN for path in (ROOT / package).rglob("*") if path.is_file()]
        files |= {str(path.relative_to(ROOT)): path for path in own}
    (info,) = {name.partition("/")[0] for name in files if name.partition("/")[0].endswith(".dist-info")}
    kept = {name: path for name, path in files.items() if not LEFT_OUT & set(path.parts)}
    del kept[f"{info}/RECORD"]
    (*_, tag) = [
        line.split()[1] for line in (one.read_text("WHEEL") or "").splitlines() if line[:4] == "Tag:"
    ]
    wheel = folder / f"{info.removesuffix('.dist-info')}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, path in kept.items():
            archive.write(path, name)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*kept, f"{info}/RECORD"]))
    return wheel
