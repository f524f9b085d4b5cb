"""Read and write the pins in constraints.txt and the hashes in hashes.txt, and select the pins that a purpose needs.

A line of constraints.txt is `name==version  # required by`. The comment names other pins, or lists of pyproject.toml:
`rabbit-chx`, `rabbit-chx[EXTRA]`, `(build)` for the build requirements, `(GROUP)` for a dependency group. Following the
comments therefore gives the pins for a purpose, and no resolver runs before every hash is known.

Rules for this file: it imports only the standard library, starts no program and contacts no index.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

OWN = "rabbit-chx"
CONSTRAINTS = Path("constraints.txt")
HASHES = Path("hashes.txt")

CONSTRAINTS_HEADER = """\
# The versions the tests ran with, on Python 3.11 to 3.14: `make` installs exactly these, and of each only a file
# that hashes.txt knows. pyproject.toml holds the ranges that users of the package get.
# Behind each stands who asks for it: another package, a list of pyproject.toml, or a (group) there.
# Renew them all with `make constraints PYTHON=python3.11` (the oldest Python, so that the pins suit the
# later ones too), then run `make test-all`.
"""
HASHES_HEADER = """\
# The hash of every file of each release that `make` installs, as the package index gave them; older releases that
# the tests want as well included. Written by `make constraints`.
"""


def lists_of(pyproject: dict[str, Any]) -> dict[str, list[str]]:
    """Return the lists of requirements in pyproject.toml, by their names in constraints.txt."""
    project, groups = pyproject["project"], pyproject["dependency-groups"]
    found = {OWN: project["dependencies"], "(build)": pyproject["build-system"]["requires"]}
    found |= {f"{OWN}[{extra}]": lines for extra, lines in project["optional-dependencies"].items()}
    return found | {f"({group})": lines for group, lines in groups.items()}


def read_constraints(text: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Return the version of each name, and what requires it."""
    found = re.findall(r"^([^#\s=]+)==(\S+) +# (.+)$", text, re.MULTILINE)
    return {name: (version, frozenset(askers.split(", "))) for name, version, askers in found}


def write_constraints(pins: Mapping[str, tuple[str, frozenset[str]]]) -> str:
    """Write the format that `read_constraints` reads."""
    width = max(len(f"{name}=={version}") for name, (version, _) in pins.items())
    lines = [
        f"{f'{name}=={version}':{width}}  # {', '.join(sorted(askers))}"
        for name, (version, askers) in sorted(pins.items(), key=lambda pin: pin[0].lower())
    ]
    return CONSTRAINTS_HEADER + "\n".join(lines) + "\n"


def needed(text: str, *askers: str) -> list[str]:
    """Return the pins that these require, directly or indirectly; a pin requires itself."""
    pins = read_constraints(text)
    chosen = set(askers)
    while more := {name for name, (_, wanted) in pins.items() if wanted & chosen} - chosen:
        chosen |= more
    return [f"{name}=={pins[name][0]}" for name in pins if name in chosen]


def read_hashes(text: str) -> dict[str, list[str]]:
    """Return the hashes of the files of each release, by `name==version`."""
    entries = [entry.split() for entry in text.replace("\\\n", "").splitlines() if entry[:1] != "#"]
    return {release: hashes for release, *hashes in entries}


def with_hashes(hashes: Mapping[str, list[str]], releases: Iterable[str]) -> str:
    """Write a requirements file with these releases, each `name==version` or `name==version; marker`.

    hashes.txt has the same format.
    """
    entries = []
    for release in releases:
        known = hashes.get(release.partition(";")[0].strip())
        if not known:
            message = f"hashes.txt knows no file of {release}: make constraints"
            raise LookupError(message)
        entries.append(" \\\n".join([release, *(f"    {one}" for one in known)]))
    return "\n".join(entries) + "\n"
