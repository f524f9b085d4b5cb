"""The options and the parts of a report that the benchmarks of consuming, of streams and of Spark share."""

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


def options_parser(
    description: str | None, count: str, default: int, *, rounds: int, release: str = ""
) -> argparse.ArgumentParser:
    """Return a parser of the command line; ``count`` is the name of the option for the number of messages."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--release", default=None, help=release)
    parser.add_argument(
        count, dest="messages", type=int, default=default, help="number of messages of one turn"
    )
    parser.add_argument("--size", type=int, default=100, help="bytes in each body")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--json", action="store_true")
    return parser


def conditions(broker: Broker, options: argparse.Namespace) -> dict[str, Any]:
    """The conditions of a run, for its report."""
    return {
        "rabbitmq": broker.version,
        "messages": options.messages,
        "size": options.size,
        "rounds": options.rounds,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[1],
    }


def headline(report: dict[str, Any]) -> str:
    """The conditions of a run as a line of text."""
    return (
        f"RabbitMQ {report['rabbitmq']}, {report['messages']:,} messages of {report['size']} bytes, "
        f"median of {report['rounds']} rounds, {report['cores']} cores, load {report['load']:.0f}"
    )


def medians(turns: Sequence[Turn]) -> dict[str, float]:
    """The medians of the turns of one way, for its row of the report."""
    return {
        "messages_per_second": statistics.median(turn.rate for turn in turns),
        "cpu_microseconds": statistics.median(turn.microseconds for turn in turns),
    }
