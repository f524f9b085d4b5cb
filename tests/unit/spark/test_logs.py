"""What a Python process of Spark without logging configuration writes to stderr."""

from __future__ import annotations

import re
import sys

import pytest

from tests.programs import ran

TWICE = "; show('rabbit_chx.consuming'); show('rabbit_chx.consuming')"
ROOT = "; logging.basicConfig(format='root %(message)s')"


@pytest.mark.parametrize(("before", "lines"), [("", 1), (TWICE, 1), (ROOT + TWICE, 1)])
def test_the_log_of_a_reader_appears_once(before: str, lines: int) -> None:
    script = (
        "import logging; from spark_connector.worker import show; import rabbit_chx.consuming.queue_reader"
        f"{before}; logging.getLogger('rabbit_chx.consuming').warning('a warning')"
    )
    done = ran([sys.executable, "-c", script], check=True, timeout=60)
    assert done.stderr.count("a warning") == lines


def test_a_worker_that_writes_to_a_stream_shows_with_its_time_what_the_publisher_logs() -> None:
    script = (
        "import contextlib, logging; from spark_connector.writing.options import WriteOptions; "
        "from spark_connector.writing.publishers import open_publisher\n"
        "options = WriteOptions.of({'url': 'amqp://127.0.0.1', 'stream': 's', 'streamPort': '1'})\n"
        "with contextlib.suppress(Exception):\n    open_publisher(options, 's', None, 'spark')\n"
        "logging.getLogger('rabbit_chx.streams').warning('a warning')"
    )
    done = ran([sys.executable, "-c", script], check=True, timeout=60)
    assert re.search(
        r"^\d{4}-\d\d-\d\d .* WARNING rabbit_chx\.streams: a warning$", done.stderr, re.MULTILINE
    )
