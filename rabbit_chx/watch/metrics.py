"""The newest interval of a watch as metrics for Prometheus, through its client library.

The series of a queue end when the queue is gone. Needs the extra ``watch``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from rabbit_chx.errors import MissingDependency
from rabbit_chx.watch.canary import CanaryResults
from rabbit_chx.watch.interval import Interval, Row
from rabbit_chx.watch.snapshot import PROBLEMS

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

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
    """A collector of the newest interval; before the first interval it has no metrics.

    Raises:
        MissingDependency: if prometheus-client is not installed.
    """

    def __init__(self) -> None:
        try:
            from prometheus_client import CollectorRegistry
        except ImportError as error:
            raise MissingDependency(
                "--serve needs prometheus-client: pip install 'rabbit-chx[watch]'"
            ) from error
        self._registry = CollectorRegistry()
        self._newest: tuple[Interval, Counter[str], Counter[str]] | None = None
        self._canaries: Counter[str] = Counter()
        self._registry.register(self)

    def show(self, interval: Interval) -> None:
        """Replace the interval, and count its messages."""
        if interval.canaries is not None:
            self._canaries.update(interval.canaries.outcomes)
        _, received, handled = self._newest or (None, Counter[str](), Counter[str]())
        self._newest = (
            interval,
            Counter({row.queue: received[row.queue] + (row.received or 0) for row in interval.rows}),
            Counter({row.queue: handled[row.queue] + (row.handled or 0) for row in interval.rows}),
        )

    def text(self) -> tuple[bytes, str]:
        """Return the metrics in the text format of Prometheus, and its content type."""
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def describe(self) -> Iterator[Metric]:
        """Yield nothing: without this method, the registry would collect the metrics to learn their names."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the newest interval."""
        if self._newest is None:
            return
        interval, received, handled = self._newest
        yield from _of_the_exchange(interval)
        yield from _of_the_queues(interval)
        yield from _counted(interval, "received", "Messages that arrived during the watch.", received)
        yield from _counted(interval, "handled", "Messages that left during the watch.", handled)
        if interval.canaries is not None:
            yield from _of_the_canaries(interval, interval.canaries, self._canaries)


def _gauge(name: str, about: str, *labels: str) -> GaugeMetricFamily:
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(_PREFIX + name, about, labels=("vhost", "exchange", *labels))


def _counter(name: str, about: str, *labels: str) -> CounterMetricFamily:
    from prometheus_client.core import CounterMetricFamily

    return CounterMetricFamily(_PREFIX + name, about, labels=("vhost", "exchange", *labels))


def _of_the_exchange(interval: Interval) -> Iterator[Metric]:
    labels = [interval.vhost, interval.exchange]
    for name, (about, read) in _OF_EXCHANGES.items():
        family = _gauge(name, about)
        value = read(interval)
        if value is not None:
            family.add_metric(labels, float(value))
        yield family
    found = Counter(problem.name for problem in interval.problems)
    family = _gauge("problems", "Problems of the exchange and its queues, by name.", "problem")
    for name in PROBLEMS:
        family.add_metric([*labels, name], found[name])
    yield family


def _of_the_queues(interval: Interval) -> Iterator[Metric]:
    labels = [interval.vhost, interval.exchange]
    for name, (about, read) in _OF_QUEUES.items():
        family = _gauge(name, about, "queue")
        for row in interval.rows:
            value = read(row)
            if value is not None:
                family.add_metric([*labels, row.queue], float(value))
        yield family
    family = _gauge("queue_problem", "1 for each problem of a queue.", "queue", "problem")
    for row in interval.rows:
        for mark in row.marks:
            family.add_metric([*labels, row.queue, mark], 1.0)
    yield family


def _of_the_canaries(interval: Interval, canaries: CanaryResults, counts: Counter[str]) -> Iterator[Metric]:
    labels = [interval.vhost, interval.exchange]
    counter = _counter("canaries", "Canaries during the watch, by result.", "result")
    for outcome, count in counts.items():
        counter.add_metric([*labels, outcome.replace(" ", "-")], count)
    yield counter
    gauge = _gauge(
        "canary_round_trip_seconds",
        "Longest time from sending a canary to its report in the newest interval.",
    )
    if canaries.longest_seconds is not None:
        gauge.add_metric(labels, canaries.longest_seconds)
    yield gauge


def _counted(interval: Interval, name: str, about: str, counts: Counter[str]) -> Iterator[Metric]:
    family = _counter(name, about, "queue")
    for queue, count in counts.items():
        family.add_metric([interval.vhost, interval.exchange, queue], count)
    yield family
