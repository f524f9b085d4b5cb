"""The pictures in docs/ show what the verbs print, and what a change moves."""

from __future__ import annotations

from pathlib import Path

import pictures
import pytest

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"


@pytest.mark.parametrize("name", pictures.NAMES)
def test_a_picture_is_what_its_command_prints(name) -> None:
    assert pictures.drawn(name) == (PICTURES / f"{name}.svg").read_text(), (
        f"{name}.svg is out of date: `.venv/bin/python scripts/pictures.py` draws it again; then look at it"
    )


def test_there_is_no_other_picture() -> None:
    assert sorted(path.name for path in PICTURES.iterdir()) == sorted(
        f"{name}.svg" for name in pictures.NAMES
    )
