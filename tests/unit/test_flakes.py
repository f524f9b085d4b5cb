"""The count of tests that fail now and then: every failed run is counted."""

from __future__ import annotations

import argparse

import flakes
import pytest

PASSED = "......\n4507 passed, 16 skipped in 259.90s (0:04:19)\n"
FAILED = """..F.E
FAILED tests/unit/test_ring.py::test_a[3.10-x y] - AssertionError: assert 1 == 2
ERROR tests/unit/test_ring.py::test_b - OSError
1 failed, 4505 passed, 1 error in 20.00s
"""


def test_failures_are_counted_by_test_over_all_runs() -> None:
    suite = flakes.Suite("unit")
    assert suite.add(PASSED, 0, 260) == "4507 passed, 16 skipped in 259.90s (0:04:19)"
    suite.add(FAILED, 1, 300)
    suite.add(FAILED, 1, 280)
    assert suite.row() == ("`tests/unit`", "3", "13,521", "4", "4.3 to 5.0")
    assert flakes.written(suite).endswith(
        "\n\n* tests/unit/test_ring.py::test_a[3.10-x y]: 2\n* tests/unit/test_ring.py::test_b: 2"
    )


@pytest.mark.parametrize(("output", "code"), [("", -9), ("....\n", 2), ("no tests ran in 0.01s\n", 5)])
def test_a_run_that_did_not_end_is_a_failure(output, code) -> None:
    suite = flakes.Suite("broker")
    suite.add(output, code, 1)
    assert dict(suite.failed) == {f"pytest ended with exit code {code}": 1}


def test_a_table_without_failures_has_no_list() -> None:
    suite = flakes.Suite("broker")
    suite.add(PASSED, 0, 60)
    assert flakes.written(suite).splitlines()[2:] == ["| `tests/broker` | 1 | 4,507 | 0 | 1.0 to 1.0 |"]


@pytest.mark.parametrize("text", ["unit", "unit=", "unit=0", "unit=-1", "spark=2", "unit=x"])
def test_an_invalid_number_of_runs_is_refused(text) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="unit=20"):
        flakes.runs_of(text)


def test_the_table_of_a_suite_that_is_not_run_stays(tmp_path, monkeypatch, capsys) -> None:
    page = tmp_path / "page.md"
    old = "<!-- flakes {}: begin -->\nold\n<!-- flakes {}: end -->\n"
    page.write_text("".join(old.format(name, name) for name in flakes.SUITES))
    monkeypatch.setattr("sys.argv", ["flakes.py", "--page", str(page), "broker=2"])
    monkeypatch.setattr(flakes, "run", lambda suite, workers: suite.add(PASSED, 0, 60))
    assert flakes.main() == 0
    unit, broker = page.read_text().split("<!-- flakes broker: begin -->")
    assert "old" in unit
    assert "old" not in broker
    assert "| `tests/broker` | 2 | 9,014 | 0 | 1.0 to 1.0 |" in broker
    assert "broker 2 of 2: 4507 passed" in capsys.readouterr().out
