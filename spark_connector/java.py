"""Find a Java that PySpark can run: JAVA_HOME's, the one on the PATH, or the one that ``make`` installed.

PySpark takes the first of these without checking it, and fails obscurely if it is unsuitable. This module runs each
one with Spark's own flags.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from rabbit_chx.errors import MissingDependency

INSTALLED_BY_MAKE: Final = "java"
"""The folder of the virtual environment where ``make`` installs a Java if the machine has no usable one."""

EVERY_PYSPARK_4: Final = (17, 21)
"""The Java versions that every PySpark 4 supports."""

_TIMEOUT_SECONDS: Final = 60.0
_ON_PATH: Final = "java on the PATH"
_MAKE: Final = "installed by make"
_NONE: Final = "JAVA_HOME is not set, and no java is on the PATH"
# Spark's launcher passes the first, and a Java without the module, or before 9, exits at once (JavaModuleOptions.java).
_FLAGS: Final = ("--add-modules=jdk.incubator.vector", "-XshowSettings:properties")


class Java(NamedTuple):
    """A Java that PySpark can run on."""

    home: Path
    """The value of JAVA_HOME that makes PySpark use it."""
    version: int
    origin: str
    """``JAVA_HOME``, ``java on the PATH`` or ``installed by make``."""
    skipped: str = ""
    """Why PySpark would not find it without being told; empty if it would."""


def find_java(versions: tuple[int, ...] = ()) -> Java:
    """The first Java that the installed PySpark (or one that needs ``versions``) can run on.

    Set ``os.environ["JAVA_HOME"]`` to its home before Spark starts.

    Raises:
        MissingDependency: none is usable; the message says why each one is not.
    """
    usable = versions or _supported()
    skipped: list[str] = []
    for origin, program in _candidates():
        try:
            home, version = _home_and_version(program, usable)
        except ValueError as reason:
            skipped.append(f"{origin} ({program}) {reason}")
        else:
            # A program on the PATH may be a shim outside the folder of its Java.
            home = home if origin == _ON_PATH else program.parents[1]
            reasons = "; ".join(skipped) or (_NONE if origin == _MAKE else "")
            return Java(home, version, origin, reasons)
    raise MissingDependency(
        f"no usable Java for Spark: {'; '.join(skipped) or _NONE}. Install Java {' or '.join(map(str, usable))} "
        "(Debian, Ubuntu: apt install openjdk-17-jre-headless) and set JAVA_HOME to its folder"
    )


def _candidates() -> Iterator[tuple[str, Path]]:
    """In the order in which PySpark looks, then the one that PySpark does not know."""
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java")
    if found := shutil.which("java"):
        yield _ON_PATH, Path(found)
    own = Path(sys.prefix, INSTALLED_BY_MAKE, "bin", "java")
    if own.exists():
        yield _MAKE, own


def _supported() -> tuple[int, ...]:
    try:
        from pyspark import __version__
    except ImportError:
        return EVERY_PYSPARK_4
    major, minor = map(int, __version__.split(".")[:2])
    return (*EVERY_PYSPARK_4, 25) if (major, minor) >= (4, 2) else EVERY_PYSPARK_4


def _home_and_version(program: Path, usable: tuple[int, ...]) -> tuple[Path, int]:
    """Run a Java as Spark does. A ``ValueError`` says why Spark cannot use it."""
    command = [str(program), *_FLAGS, "-version"]
    try:
        text = subprocess.check_output(  # noqa: S603 - a Java of this machine
            command, stderr=subprocess.STDOUT, timeout=_TIMEOUT_SECONDS, text=True, errors="replace"
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = error.output if isinstance(error, subprocess.CalledProcessError) else str(error)
        raise ValueError(f"does not run: {' '.join(said.split())[:200] or 'it prints nothing'}") from None
    # 'openjdk version "17.0.15" 2025-04-15', 'java version "1.8.0_392"'
    version = re.search(r'\bversion "(?:1\.)?(\d+)', text)
    if version is None or int(version[1]) not in usable:
        raise ValueError(f"is Java {version[1]}" if version else "does not run: it prints no version")
    home = re.search(r"^\s*java\.home = (.+)$", text, re.MULTILINE)
    return Path(home[1]) if home else program.parents[1], int(version[1])
