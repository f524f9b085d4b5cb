"""What a Python process of Spark without logging configuration writes to stderr."""

from __future__ import annotations

import sys

import pytest

from tests.programs import ran

TWICE = "; show('rabbit_chx.consuming'); show('rabbit_chx.consuming')"
ROOT = "; logging.basicConfig(format='root %(message)s')"


@pytest.mark.parametrize(("before", "lines"), [("", 1), (TWICE, 1), (ROOT + TWICE, 1)])
def test_the_log_of_a_reader_appears_once(before: str, lines: int) -> None:
    script = (
        "import logging; from spark_connector.logs import show; import rabbit_chx.consuming.queue_reader"
        f"{before}; logging.getLogger('rabbit_chx.consuming').warning('a warning')"
    )
    done = ran([sys.executable, "-c", script], check=True, timeout=60)
    assert done.stderr.count("a warning") == lines
