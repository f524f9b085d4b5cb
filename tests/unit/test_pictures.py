"""The pictures of verbs at a terminal show what the verbs print."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts import script

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


@pytest.mark.parametrize("name", sorted(path.stem for path in PICTURES.glob("*.svg")))
def test_a_picture_is_what_its_command_prints(name) -> None:
    pictures = script("pictures")
    drawn = pictures.terminal(name, pictures.TERMINAL[name])
    assert drawn == (PICTURES / f"{name}.svg").read_text(), (
        f"{name}.svg is out of date: `.venv/bin/python scripts/pictures.py terminal` draws it anew; then look at it"
    )


def test_every_command_has_its_picture() -> None:
    assert {path.stem for path in PICTURES.glob("*.svg")} == set(script("pictures").TERMINAL)
