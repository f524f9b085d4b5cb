"""Skipped tests are summarised by reason."""

from __future__ import annotations

pytest_plugins = "pytester"

PROGRAM = """
import pytest


@pytest.mark.parametrize("number", range(7))
def test_many(number):
    pytest.skip("no broker" if number else "no Spark")


def test_one_more():
    pytest.skip("no broker")


@pytest.mark.xfail(reason="known")
def test_expected_failure():
    raise AssertionError
"""


def test_each_reason_has_one_line_with_the_number_of_its_tests(pytester) -> None:
    pytester.makepyfile(PROGRAM)
    pytester.mkdir("whole").joinpath("test_file.py").write_text(
        "import pytest\npytest.importorskip('no_such_package', reason='no package')\n"
    )
    result = pytester.runpytest("-p", "tests.skips", "-rfEX")
    result.assert_outcomes(skipped=9, xfailed=1)
    assert [line for line in result.outlines if line.startswith("SKIPPED")] == [
        "SKIPPED [7] no broker",
        "SKIPPED [1] no package",
        "SKIPPED [1] no Spark",
    ]
