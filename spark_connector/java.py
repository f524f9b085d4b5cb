"""Which Java is here that PySpark can run on: JAVA_HOME's, the one on the PATH, or the one that ``make`` brought along.

PySpark takes the first of these, whatever it is, and says little where it is the wrong one. This file runs each as
Spark would and judges what it says; it opens no socket, imports no PySpark and changes nothing.
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

__all__ = ["BROUGHT_ALONG", "EVERY_PYSPARK_4", "Java", "find_java", "usable_versions", "version_in"]

BROUGHT_ALONG: Final = "java"
"""The folder of an environment where ``make`` puts a Java, if the machine has none that is usable."""

EVERY_PYSPARK_4: Final = (17, 21)
"""The versions of Java that PySpark 4.0 runs on, and all later ones so far."""

_PATIENCE: Final = 60.0
"""Seconds that one has to tell its version; the slowest machine needs a few."""

# Spark's launcher passes this, and a Java without the module ends at once (JavaModuleOptions.java).
_AS_SPARK_DOES: Final = "--add-modules=jdk.incubator.vector"
_ON_PATH: Final = "java on the PATH"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that PySpark can run on."""

    home: Path
    """What JAVA_HOME has to be, so that PySpark takes this one."""
    version: int
    """Such as 17."""
    origin: str
    """How it was found: ``JAVA_HOME``, ``java on the PATH`` or ``brought along by make``."""
    passed_over: tuple[str, ...] = ()
    """Those that PySpark would take before this one, each with the reason why it cannot be used."""


def find_java(versions: tuple[int, ...] | None = None) -> Java:
    """The first Java that PySpark can run on; :class:`MissingDependency` says what was found instead.

    ``versions`` are those wanted, by default :func:`usable_versions`. PySpark itself has to be told: ``os.environ["JAVA_HOME"] = str(find_java().home)``.
    """
    usable = versions or usable_versions()
    passed_over: list[str] = []
    for origin, program in _candidates():
        found = _judged(origin, program, usable)
        if isinstance(found, Java):
            return replace(found, passed_over=tuple(passed_over))
        passed_over.append(f"{origin} ({program}) {found}")
    raise MissingDependency(
        f"there is no Java for Spark: {'; '.join(passed_over) or 'JAVA_HOME is not set, and no java is on the PATH'}. "
        f"Allowed is {_listed(usable)}. Install one (Debian, Ubuntu: apt install openjdk-17-jre-headless) "
        "and set JAVA_HOME to its folder"
    )


def version_in(text: str) -> int | None:
    """The version in what ``java -version`` prints; None where there is none.

    >>> version_in('openjdk version "17.0.15" 2025-04-15'), version_in('java version "1.8.0_392"')
    (17, 8)
    """
    found = re.search(r'\bversion "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


def usable_versions() -> tuple[int, ...]:
    """The versions of Java that the installed PySpark supports: 17 and 21, and 25 from PySpark 4.2 on."""
    try:
        major, minor = metadata.version("pyspark").split(".")[:2]
    except metadata.PackageNotFoundError:
        return EVERY_PYSPARK_4
    return (*EVERY_PYSPARK_4, 25) if (int(major), int(minor)) >= (4, 2) else EVERY_PYSPARK_4


def _candidates() -> Iterator[tuple[str, Path]]:
    """In the order in which PySpark looks, and then the one that it does not know of."""
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java")
    if found := shutil.which("java"):
        yield _ON_PATH, Path(found)
    own = Path(sys.prefix, BROUGHT_ALONG, "bin", "java")
    if own.exists():
        yield "brought along by make", own


def _judged(origin: str, program: Path, usable: tuple[int, ...]) -> Java | str:
    """What runs there, or the reason why it cannot be used."""
    ended_well, text = _run(program, "-XshowSettings:properties", "-version")
    version = version_in(text) if ended_well else None
    if version is None:
        return f"does not run: {_first_line(text)}"
    if version not in usable:
        fault = ", too old" if version < usable[0] else ", too new" if version > usable[-1] else ""
        return f"is Java {version}{fault}"
    if not _run(program, _AS_SPARK_DOES, "-version")[0]:
        return f"is a Java {version} without the module jdk.incubator.vector, which Spark asks for"
    # On the PATH there may be a shim, which knows its Java and stands in no folder of one.
    told = re.search(r"^\s*java\.home = (.+)$", text, re.MULTILINE) if origin == _ON_PATH else None
    return Java(Path(told[1]) if told else program.parents[1], version, origin)


def _run(program: Path, *arguments: str) -> tuple[bool, str]:
    """Whether it ended well, and what it printed, or why it did not run."""
    try:
        done = subprocess.run(  # noqa: S603 - a Java of this machine
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"no answer in {_PATIENCE:.0f} seconds"
    except OSError as error:
        return False, error.strerror or str(error)
    return done.returncode == 0, done.stdout.decode(errors="replace")


def _first_line(text: str) -> str:
    return next((line.strip()[:120] for line in text.splitlines() if line.strip()), "it prints nothing")


def _listed(versions: tuple[int, ...]) -> str:
    *others, last = map(str, versions)
    return f"Java {' or '.join(filter(None, [', '.join(others), last]))}"
