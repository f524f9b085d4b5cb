"""The parts of a report that the benchmarks of consuming and of streams share."""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Sequence
from typing import Any, Protocol

from rabbit_chx.testing import Broker


class Turn(Protocol):
    """The result of one way in one round."""

    @property
    def rate(self) -> float:
        """Messages per second."""

    @property
    def microseconds(self) -> float:
        """CPU time per message."""


def conditions(broker: Broker, options: argparse.Namespace) -> dict[str, Any]:
    """The conditions of a run, for its report."""
    return {
        "rabbitmq": broker.version,
        "messages": options.messages,
        "size": options.size,
        "rounds": options.rounds,
        "cores": os.cpu_count(),
    }


def headline(report: dict[str, Any]) -> str:
    """The conditions of a run as a line of text."""
    return (
        f"RabbitMQ {report['rabbitmq']}, {report['messages']:,} messages of {report['size']} bytes, "
        f"median of {report['rounds']} rounds, {report['cores']} cores"
    )


def medians(turns: Sequence[Turn]) -> dict[str, float]:
    """The medians of the turns of one way, for its row of the report."""
    return {
        "messages_per_second": statistics.median(turn.rate for turn in turns),
        "cpu_microseconds": statistics.median(turn.microseconds for turn in turns),
    }
