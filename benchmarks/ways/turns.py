"""The options, the turns and the parts of a report that the benchmarks of messages share."""

from __future__ import annotations

import argparse
import os
import random
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any, TypeVar

from rabbit_chx.testing import Broker

_Way = TypeVar("_Way")


@dataclass(frozen=True)
class Turn:
    """The result of one way in one round."""

    messages: int
    seconds: float
    cpu_seconds: float
    peak_megabytes: float | None = None
    """Of the largest process, where it was measured."""

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds

    @property
    def cpu(self) -> float:
        """CPU microseconds per message."""
        return self.cpu_seconds / self.messages * 1e6


def timed(way: Callable[[], int]) -> Turn:
    """Let a way handle messages, whose number it returns; the CPU time is that of this process with all its threads."""
    used, start = process_time(), perf_counter()
    messages = way()
    return Turn(messages, perf_counter() - start, process_time() - used)


def in_turns(ways: Iterable[_Way], rounds: int) -> Iterator[tuple[_Way, bool]]:
    """Yield all ways in each round, in another order each time, and whether the turn counts: the first round warms up."""
    every = list(ways)
    for number in range(rounds + 1):
        for way in random.Random(number).sample(every, len(every)):
            yield way, number > 0


def ratio(turns: Sequence[Turn], others: Sequence[Turn], what: str = "rate") -> float:
    """The median of the ratios within a round, of the rates or of the CPU times."""
    pairs = zip(turns, others, strict=True)
    return statistics.median(getattr(one, what) / getattr(other, what) for one, other in pairs)


def options_parser(
    description: str | None, count: str, default: int | None, *, rounds: int, release: str = ""
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
        "cpu_microseconds": statistics.median(turn.cpu for turn in turns),
    }
