"""The pictures of verbs at a terminal show what the verbs print."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"


@pytest.fixture
def pictures(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return import_module("pictures")


@pytest.mark.parametrize("name", sorted(path.stem for path in PICTURES.glob("*.svg")))
def test_a_picture_is_what_its_command_prints(pictures, name) -> None:
    drawn = pictures.terminal(name, pictures.TERMINAL[name])
    assert drawn == (PICTURES / f"{name}.svg").read_text(), (
        f"{name}.svg is out of date: `.venv/bin/python scripts/pictures.py terminal` draws it anew; then look at it"
    )


def test_every_command_has_its_picture(pictures) -> None:
    assert {path.stem for path in PICTURES.glob("*.svg")} == set(pictures.TERMINAL)
