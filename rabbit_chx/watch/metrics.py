"""The newest interval of a watch as metrics for Prometheus, through its client library.

The series of a queue end when the queue is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest

from rabbit_chx.watch.interval import Interval, Row
from rabbit_chx.watch.observer import PROBLEMS

_Values: TypeAlias = "Mapping[tuple[str, ...], float | None]"
"""Values by their labels, after those of the exchange; None if unknown."""
_PREFIX: Final = "rabbit_chx_watch_"
_OF_EXCHANGES: Final[dict[str, tuple[str, Callable[[Interval], float | None]]]] = {
    "timestamp_seconds": ("When the newest interval ended.", lambda interval: interval.time),
    "broker_reachable": (
        "Whether the broker could be read (1) or not (0).",
        lambda interval: interval.reachable,
    ),
    "ring_drifted": (
        "Whether the ring differs from the file, or from the start of the watch.",
        lambda interval: interval.ring.status == "drifted",
    ),
    "ring_unknown": (
        "Whether the comparison of the ring is unknown (1) or not (0).",
        lambda interval: interval.ring.status == "unknown",
    ),
    "misrouted_share": (
        "Exact share of the keys that go to the wrong queue, if known.",
        lambda interval: 0.0 if interval.ring.status == "same" else interval.ring.misrouted,
    ),
}
_OF_QUEUES: Final[dict[str, tuple[str, Callable[[Row], float | None]]]] = {
    "expected_share": ("Exact share of all keys that the queue gets.", lambda row: row.exact),
    "observed_share": ("Share of the messages of the newest interval.", lambda row: row.observed),
    "queue_messages": ("Messages that are ready, or delivered and not acknowledged.", lambda row: row.depth),
    "queue_oldest_seconds": ("Age of the first message, if the broker reports it.", lambda row: row.oldest),
    "queue_consumers": ("Consumers of the queue.", lambda row: row.consumers),
}


class Metrics:
    """A collector of the newest interval; before the first interval it has no metrics."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._newest: tuple[Interval, Counter[str], Counter[str]] | None = None
        self._registry.register(self)

    def show(self, interval: Interval) -> None:
        """Replace the interval, and count its messages."""
        _, received, handled = self._newest or (None, Counter[str](), Counter[str]())
        self._newest = (
            interval,
            Counter({row.queue: received[row.queue] + (row.received or 0) for row in interval.rows}),
            Counter({row.queue: handled[row.queue] + (row.handled or 0) for row in interval.rows}),
        )

    def text(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        return generate_latest(self._registry)

    def describe(self) -> Iterator[Metric]:
        """Yield nothing: without this method, the registry would collect the metrics to learn their names."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the newest interval."""
        if self._newest is None:
            return
        interval, received, handled = self._newest
        gauge = partial(_family, GaugeMetricFamily, interval)
        counter = partial(_family, CounterMetricFamily, interval)
        for name, (about, read) in _OF_EXCHANGES.items():
            yield gauge(name, about, {(): read(interval)})
        found = Counter(problem.name for problem in interval.problems)
        problems: _Values = {(name,): found[name] for name in PROBLEMS}
        yield gauge("problems", "Problems of the exchange and its queues, by name.", problems, "problem")
        for name, (about, read_row) in _OF_QUEUES.items():
            yield gauge(name, about, {(row.queue,): read_row(row) for row in interval.rows}, "queue")
        marks: _Values = {(row.queue, mark): 1 for row in interval.rows for mark in row.marks}
        yield gauge("queue_problem", "1 for each problem of a queue.", marks, "queue", "problem")
        arrived: _Values = {(queue,): count for queue, count in received.items()}
        left: _Values = {(queue,): count for queue, count in handled.items()}
        yield counter("received", "Messages that arrived during the watch.", arrived, "queue")
        yield counter("handled", "Messages that left during the watch.", left, "queue")


def _family(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    interval: Interval,
    name: str,
    about: str,
    values: _Values,
    *labels: str,
) -> Metric:
    """A metric with those of the values that are known."""
    family = kind(_PREFIX + name, about, labels=("vhost", "exchange", *labels))
    for of, value in values.items():
        if value is not None:
            family.add_metric([interval.vhost, interval.exchange, *of], float(value))
    return family
