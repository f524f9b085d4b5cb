"""Writes constraints.txt and hashes.txt anew, from what the environment that runs this holds and the index says of it.

    renew.py INDEX [NAME==VERSION ...]     the further releases get hashes alone

`bootstrap.py constraints` makes that environment: the newest of everything, and nothing else.

Rules of this file: it imports the standard library, the project's `pins`, and `packaging`, which hatchling brings along. It
reads pages of the index that it is given, and names none.
"""

from __future__ import annotations

import re
import sys
import tomllib
import urllib.parse
import urllib.request
from collections import defaultdict
from html.parser import HTMLParser
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version
from pins import CONSTRAINTS, HASHES, HASHES_HEADER, with_hashes, write_constraints

OWN = "rabbit-chx"


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


def lists_of(pyproject: dict[str, Any]) -> dict[str, list[str]]:
    """Return the lists of requirements in pyproject.toml, by the names that constraints.txt has for them."""
    project, groups = pyproject["project"], pyproject["dependency-groups"]
    found = {OWN: project["dependencies"], "(build)": pyproject["build-system"]["requires"]}
    found |= {f"{OWN}[{extra}]": lines for extra, lines in project["optional-dependencies"].items()}
    return found | {f"({group})": lines for group, lines in groups.items()}


def asked_for(lists: dict[str, list[str]]) -> dict[str, tuple[str, frozenset[str]]]:
    """Return what the lists bring: of each name its installed version, and who asks for it."""
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


class Links(HTMLParser):
    """The addresses that a page links to."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the address of a link."""
        if tag == "a":
            self.addresses += [value for key, value in attrs if key == "href" and value]


def hashes_of(index: str, release: str) -> list[str]:
    """Ask the index for the files of a release, those for other Pythons and machines included."""
    name, _, version = release.partition("==")
    address = f"{index.rstrip('/')}/{canonicalize_name(name)}/"
    asking = urllib.request.Request(address, headers={"Accept": "text/html"})  # noqa: S310 - the user's own index
    with urllib.request.urlopen(asking, timeout=60) as page:  # noqa: S310
        return hashes_in(page.read().decode(), Version(version))


def hashes_in(page: str, version: Version) -> list[str]:
    """Read them from the index's page of the package."""
    links = Links()
    links.feed(page)
    found = set()
    for address in links.addresses:
        parts = urllib.parse.urlsplit(address)
        file = urllib.parse.unquote(parts.path.rpartition("/")[2])
        if version_of(file) == version and re.fullmatch("sha256=[0-9a-f]{64}", parts.fragment):
            found.add("--hash=" + parts.fragment.replace("=", ":"))
    return sorted(found)


def version_of(file: str) -> Version | None:
    """Return the version in the name of a wheel or a source archive; other files are of no use to pip."""
    for parse in (parse_wheel_filename, parse_sdist_filename):
        try:
            return parse(file)[1]
        except (InvalidWheelFilename, InvalidSdistFilename):
            pass
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
