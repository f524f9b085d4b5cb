"""Regenerate constraints.txt and hashes.txt from the packages in the current environment and the index's file hashes.

    renew.py INDEX [NAME==VERSION ...]     the additional releases are added only to hashes.txt

`bootstrap.py constraints` makes that environment, which holds only the newest version of every requirement.

Rules for this file: it imports only the standard library, `pins`, and `packaging`, which hatchling depends on. It reads
pages of the index passed to it, and names none.
"""

from __future__ import annotations

import html
import re
import sys
import tomllib
import urllib.parse
import urllib.request
from collections import defaultdict
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version
from pins import CONSTRAINTS, HASHES, HASHES_HEADER, OWN, lists_of, with_hashes, write_constraints


def main(index: str, *further: str) -> None:
    """Write both files."""
    pins = asked_for(lists_of(tomllib.loads(Path("pyproject.toml").read_text())))
    releases = sorted(
        {*(f"{name}=={version}" for name, (version, _) in pins.items()), *further}, key=str.lower
    )
    hashes = {release: hashes_of(index, release) for release in releases}
    CONSTRAINTS.write_text(write_constraints(pins))
    HASHES.write_text(HASHES_HEADER + with_hashes(hashes, releases))
    print(f"rabbit-chx: {len(pins)} packages are pinned, {sum(map(len, hashes.values()))} files have hashes")


def asked_for(lists: dict[str, list[str]]) -> dict[str, tuple[str, frozenset[str]]]:
    """Return the packages that the lists require: the installed version of each, and what requires it."""
    askers: defaultdict[str, set[str]] = defaultdict(set)
    todo = [(who, Requirement(line), "") for who, lines in lists.items() for line in lines]
    seen: set[tuple[str, str]] = set()
    while todo:
        who, requirement, extra = todo.pop()
        if canonicalize_name(requirement.name) == OWN:
            continue
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = metadata.distribution(requirement.name).name
        askers[name].add(who)
        for wanted in {"", *requirement.extras} - {extra for one, extra in seen if one == name}:
            seen.add((name, wanted))
            todo += [(name, Requirement(line), wanted) for line in metadata.requires(name) or ()]
    return {name: (metadata.version(name), frozenset(who)) for name, who in askers.items()}


def hashes_of(index: str, release: str) -> list[str]:
    """Return the hashes of a release's files from the index, including those for other Pythons and platforms."""
    name, _, version = release.partition("==")
    address = f"{index.rstrip('/')}/{canonicalize_name(name)}/"
    asking = urllib.request.Request(address, headers={"Accept": "text/html"})  # noqa: S310 - the user's own index
    with urllib.request.urlopen(asking, timeout=60) as page:  # noqa: S310
        return hashes_in(page.read().decode(), Version(version))


def hashes_in(page: str, version: Version) -> list[str]:
    """Read the hashes from the package's page on the index."""
    found = set()
    for address in re.findall(r'<a\s[^>]*?href="([^"]*)"', page):
        parts = urllib.parse.urlsplit(html.unescape(address))
        file = urllib.parse.unquote(parts.path.rpartition("/")[2])
        if version_of(file) == version and re.fullmatch("sha256=[0-9a-f]{64}", parts.fragment):
            found.add("--hash=" + parts.fragment.replace("=", ":"))
    return sorted(found)


def version_of(file: str) -> Version | None:
    """Return the version in the name of a wheel or source archive; pip cannot use other files."""
    for parse in (parse_wheel_filename, parse_sdist_filename):
        try:
            return parse(file)[1]
        except (InvalidWheelFilename, InvalidSdistFilename):
            pass
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
