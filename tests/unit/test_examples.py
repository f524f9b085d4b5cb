"""Every example runs: those without a broker here, the others in tests/broker and tests/spark."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.programs import ran

EXAMPLES = Path(__file__).parents[2] / "examples"
TABLE = (EXAMPLES / "README.md").read_text()


def needing(what: str) -> list[str]:
    lines = (line for line in TABLE.splitlines() if line.endswith(f"| {what} |"))
    return [line.split("](")[1].split(")")[0] for line in lines]


OFFLINE = needing("nothing")
ONLINE = needing("a broker")
DECLARING = needing("a broker with permission to declare")
SHARDING = needing("a broker with rabbitmq_sharding")
TOPOLOGY = needing("a broker and its HTTP API")
HANDOVER = needing("a broker with permission to declare and bind")
WEB = needing("a broker and uvicorn") + needing("a broker and gunicorn")
WORKERS = needing("a broker and ordered queues")
SERVICE = needing("a broker, ordered queues and uvicorn") + needing("a broker, ordered queues and gunicorn")
SPARK = needing("a broker and Spark")
NOTEBOOKS = needing("Spark")


def test_the_table_names_every_example() -> None:
    named = OFFLINE + ONLINE + DECLARING + SHARDING + TOPOLOGY + HANDOVER + WEB + WORKERS
    named += SERVICE + SPARK + NOTEBOOKS
    assert sorted(named) == sorted(
        path.name for path in EXAMPLES.iterdir() if path.suffix in {".py", ".ipynb"}
    )


@pytest.mark.parametrize("name", OFFLINE)
def test_example_runs_without_a_broker(name: str) -> None:
    done = ran([sys.executable, "-W", "error", EXAMPLES / name])
    assert done.returncode == 0, done.stderr
    assert done.stdout
