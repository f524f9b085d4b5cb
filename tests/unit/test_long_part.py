"""A part of the long tests."""

from __future__ import annotations

import re
from pathlib import Path

pytest_plugins = "pytester"

REPOSITORY = Path(__file__).parents[2]


def test_each_long_test_is_in_one_part_and_all_others_are_in_each(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    pytester.makeini("[pytest]\nmarkers = long")
    text = "import pytest\ndef test_short(): pass\n@pytest.mark.long\ndef test_long(): pass"
    pytester.makepyfile(**{f"test_{name}": text for name in "abcdefgh"})

    def collected(part: str) -> set[str]:
        done = pytester.runpytest("-p", "tests.long_part", "--long-part", part, "--collect-only", "-q")
        return set(re.findall(r"^test_\w.py::\w+", done.stdout.str(), re.MULTILINE))

    parts = [collected(f"{number}/3") for number in (1, 2, 3)]
    short = {f"test_{name}.py::test_short" for name in "abcdefgh"}
    assert all(short <= part for part in parts)
    long = [each for part in parts for each in part - short]
    assert sorted(long) == [f"test_{name}.py::test_long" for name in "abcdefgh"]
    assert all(part > short for part in parts)
