"""Settings of a session, in a program that starts a Spark of its own."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.programs import ran
from tests.spark import session_settings

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long, pytest.mark.proof]


@pytest.mark.pyspark("4.1", "register replaces a format that Spark has found")
def test_settings_replace_options_and_invalid_writes_fail_before_a_job_starts(broker, inbox, tmp_path):
    """The first python3 on the PATH fails, like a Python without rabbit-chx."""
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    environment |= {"PATH": f"{tmp_path}:{environment['PATH']}", "PYTHONPATH": str(Path(__file__).parents[2])}
    rows = tmp_path / "rows"
    rows.mkdir()
    program = [sys.executable, "-m", session_settings.__name__, broker.url, inbox.exchange, str(rows)]
    done = ran(program, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert "invalid setting spark.speculation" in found["speculation"]
    assert "NO_SUCH_PASSWORD, which is not set on" in found["password"]
    assert (found["jobs"], found["written"], len(inbox)) == (0, "", 12)
    assert "value is null" in found["invalid"]
    assert found["counts"] == {
        "writes": 2,
        "failed_writes": 1,
        "rows": 12,
        "confirmed": 12,
        "already_stored": 0,
        "bytes": found["counts"]["bytes"],
        "connections": found["counts"]["connections"],
        "dropped": 0,
        "resent": 0,
        "possible_duplicates": 0,
    }
