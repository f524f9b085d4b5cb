"""Find a Java that PySpark can run: JAVA_HOME's, the one on the PATH, or the one that ``make`` installed.

PySpark takes the first of these without checking it, and fails obscurely if it is unsuitable. This module runs each
one with Spark's own flags. It imports no PySpark and changes nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rabbit_chx.errors import MissingDependency

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["EVERY_PYSPARK_4", "INSTALLED_BY_MAKE", "Java", "find_java"]

INSTALLED_BY_MAKE: Final = "java"
"""The folder of the virtual environment where ``make`` installs a Java if the machine has no usable one."""

EVERY_PYSPARK_4: Final = (17, 21)
"""The Java versions that every PySpark 4 supports."""

_TIMEOUT_SECONDS: Final = 60.0
# Spark's launcher passes this flag, and a Java without the module exits at once (JavaModuleOptions.java).
_SPARKS_FLAG: Final = "--add-modules=jdk.incubator.vector"
_ON_PATH: Final = "java on the PATH"
_MAKE: Final = "installed by make"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that PySpark can run on."""

    home: Path
    """The value of JAVA_HOME that makes PySpark use it."""
    version: int
    origin: str
    """``JAVA_HOME``, ``java on the PATH`` or ``installed by make``."""
    skipped: tuple[str, ...] = ()
    """Each Java that PySpark would have tried first, with the reason why it is unusable."""

    @property
    def found_by_spark(self) -> bool:
        """Whether PySpark finds this Java without being told."""
        return not self.skipped and self.origin != _MAKE


def find_java(versions: tuple[int, ...] | None = None) -> Java:
    """The first Java that the installed PySpark (or one that needs ``versions``) can run on.

    Set ``os.environ["JAVA_HOME"]`` to its home before Spark starts.

    Raises:
        MissingDependency: none is usable; the message says why each one is not.
    """
    usable = versions or _supported()
    skipped: list[str] = []
    for origin, program in _candidates():
        found = _checked(origin, program, usable)
        if isinstance(found, Java):
            return replace(found, skipped=tuple(skipped))
        skipped.append(f"{origin} ({program}) {found}")
    raise MissingDependency(
        f"no usable Java for Spark: {'; '.join(skipped) or 'JAVA_HOME is not set, and no java is on the PATH'}. "
        f"Install Java {' or '.join(map(str, usable))} (Debian, Ubuntu: apt install openjdk-17-jre-headless) "
        "and set JAVA_HOME to its folder"
    )


def _supported() -> tuple[int, ...]:
    try:
        major, minor = metadata.version("pyspark").split(".")[:2]
    except metadata.PackageNotFoundError:
        return EVERY_PYSPARK_4
    return (*EVERY_PYSPARK_4, 25) if (int(major), int(minor)) >= (4, 2) else EVERY_PYSPARK_4


def _candidates() -> Iterator[tuple[str, Path]]:
    """In the order in which PySpark looks, then the one that PySpark does not know."""
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java")
    if found := shutil.which("java"):
        yield _ON_PATH, Path(found)
    own = Path(sys.prefix, INSTALLED_BY_MAKE, "bin", "java")
    if own.exists():
        yield _MAKE, own


def _checked(origin: str, program: Path, usable: tuple[int, ...]) -> Java | str:
    """The Java, or the reason why it is unusable."""
    succeeded, text = _run(program, "-XshowSettings:properties", "-version")
    # 'openjdk version "17.0.15" 2025-04-15', 'java version "1.8.0_392"'
    found = re.search(r'\bversion "(?:1\.)?(\d+)', text) if succeeded else None
    if found is None:
        return f"does not run: {next((line.strip()[:120] for line in text.splitlines() if line.strip()), 'no output')}"
    version = int(found[1])
    if version not in usable:
        return f"is Java {version}"
    if not _run(program, _SPARKS_FLAG, "-version")[0]:
        return f"is a Java {version} without the module jdk.incubator.vector, which Spark requires"
    # A program on the PATH may be a shim outside the folder of its Java.
    told = re.search(r"^\s*java\.home = (.+)$", text, re.MULTILINE) if origin == _ON_PATH else None
    return Java(Path(told[1]) if told else program.parents[1], version, origin)


def _run(program: Path, *arguments: str) -> tuple[bool, str]:
    """Whether the program exited with 0, and its output or the reason why it did not start."""
    try:
        done = subprocess.run(  # noqa: S603 - a Java of this machine
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"no answer in {_TIMEOUT_SECONDS:.0f} seconds"
    except OSError as error:
        return False, error.strerror or str(error)
    return done.returncode == 0, done.stdout.decode(errors="replace")
