"""The wheel in an environment of its own, and wheels of installed packages: ``pip install`` as in the docs, without a download."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement

from tests.programs import ran

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROOT = Path(__file__).parents[1]
OWN = ("rabbit_chx", "spark_connector", "pyspark_rabbitmq")
LEFT_OUT = {"__pycache__", "tests", "include"}
"""Large folders of other packages that are not needed at run time."""


def installed(*requirements: str) -> Iterable[metadata.Distribution]:
    """The installed distributions that requirements need, themselves included."""
    found: dict[tuple[str, str], metadata.Distribution] = {}
    waiting = [*map(Requirement, requirements)]
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


@pytest.fixture(scope="session")
def install(tmp_path_factory) -> Callable[..., Path]:
    """Builds the wheel and installs it as `pip install REQUIREMENTS` does; returns the folder of programs of the environment."""
    dist = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", dist]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)

    @cache
    def install(*requirements: str) -> Path:
        folder = tmp_path_factory.mktemp("environment")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        (site,) = folder.glob("lib/*/site-packages")
        for one in installed(*requirements):
            if one.name != "rabbit-chx":
                link(one, site)
        programs = folder / "bin"
        pip = [sys.executable, "-m", "pip", "--python", programs / "python", "install", "--no-compile"]
        done = ran([*pip, *requirements], env=os.environ | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(dist)})
        assert done.returncode == 0, done.stdout + done.stderr
        return programs

    return install


def link(one: metadata.Distribution, site: Path) -> None:
    """Put an installed distribution into another environment; pip still compares it with what the wheel requires."""
    for name in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
        if not (name.endswith(".pth") or (site / name).exists()):
            (site / name).symlink_to(one.locate_file(name))


def outside(programs: Path, **more: str) -> dict[str, str]:
    """The environment of a shell whose programs come first, and whose Python finds nothing of the checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return kept | {"PATH": f"{programs}{os.pathsep}{kept['PATH']}"} | more
