"""The pictures in docs/ show what the verbs print, and the report as it is."""

from __future__ import annotations

from pathlib import Path

import pictures
import pytest

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"


@pytest.mark.parametrize("name", sorted(path.stem for path in PICTURES.glob("*.svg")))
def test_a_picture_is_what_its_command_prints(name) -> None:
    drawn = pictures.terminal(name, pictures.TERMINAL[name])
    assert drawn == (PICTURES / f"{name}.svg").read_text(), (
        f"{name}.svg is out of date: `.venv/bin/python scripts/pictures.py terminal` draws it again; then look at it"
    )


def test_every_command_has_its_picture() -> None:
    assert {path.stem for path in PICTURES.glob("*.svg")} == set(pictures.TERMINAL)


def test_the_screenshots_are_of_the_report_as_it_is() -> None:
    of_page = pictures.digest(pictures.report().encode())
    shots = {path.stem: path.read_bytes() for path in PICTURES.glob("*.png")}
    assert set(shots) == set(pictures.SCREENS)
    old = [name for name, png in shots.items() if pictures.mark_of(png) != of_page]
    assert not old, "`.venv/bin/python scripts/pictures.py` draws them again; then look at them"


def test_a_mark_in_a_picture_can_be_read_again() -> None:
    png = (PICTURES / "report-light.png").read_bytes()
    assert pictures.mark_of(pictures.marked(png, "another page")) == "another page"
