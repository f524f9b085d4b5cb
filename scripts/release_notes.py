"""Print the section of CHANGELOG.md about a release: ``release_notes.py v0.2.0``.

The script fails if the tag is not the version of the package, or if the changelog has no dated section for it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def version() -> str:
    """The version of the package."""
    text = (ROOT / "rabbit_chx/__init__.py").read_text()
    return str(re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)[0])


def notes(tag: str, changelog: str, version: str) -> str:
    """The notes of the release that a tag names; exit with a message if there are none."""
    if tag != f"v{version}":
        sys.exit(f"the tag {tag} does not match the version of the package, {version}")
    heading = rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d\n+(.*?)(?=^## |\Z)"
    found = re.search(heading, changelog, re.DOTALL | re.MULTILINE)
    if found is None:
        sys.exit(f"CHANGELOG.md has no section '## {version} - DATE'")
    return found[1].rstrip() + "\n"


if __name__ == "__main__":
    print(notes(sys.argv[1], (ROOT / "CHANGELOG.md").read_text(), version()), end="")
