"""The newest interval as metrics: values, hostile names, and series that end with their queues."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rabbit_chx.watch.metrics import Metrics
from rabbit_chx.watch.observer import PROBLEMS
from tests.watching import HOSTILE, QUEUES, interval

PREFIX = "rabbit_chx_watch_"


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """The value of each series, by its name, its queue, and its problem or result."""
    found = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert (labels.pop("vhost"), labels.pop("exchange")) == ("/", "orders")
            keys = [labels[name] for name in ("queue", "problem", "result") if name in labels]
            found[sample.name.removeprefix(PREFIX), *keys] = sample.value
    return found


def shown(*intervals) -> dict[tuple[str, ...], float]:
    metrics = Metrics()
    for each in intervals:
        metrics.show(each)
    return samples(metrics)


def test_metrics_have_the_values_of_the_interval() -> None:
    received = {"q0": 100, "q1": 200, "q2": 300, "q3": 400}
    found = shown(interval(received=received, states={"q1": {"oldest": 2.5, "consumers": 4}}))
    assert [found["observed_share", queue] for queue in QUEUES] == [0.1, 0.2, 0.3, 0.4]
    assert sum(found["expected_share", queue] for queue in QUEUES) == pytest.approx(1.0)
    assert found["queue_messages", "q0"] == 5
    assert (found["queue_consumers", "q1"], found["queue_oldest_seconds", "q1"]) == (4, 2.5)
    assert ("queue_oldest_seconds", "q0") not in found
    assert found["timestamp_seconds",] == 1_800_000_000
    healthy = {"broker_reachable": 1, "ring_drifted": 0, "ring_unknown": 0, "misrouted_share": 0}
    assert {name: found[name,] for name in healthy} == healthy
    assert {found["problems", name] for name in PROBLEMS} == {0}


def test_problems_are_counted_and_each_is_a_series_of_its_queue() -> None:
    states = {"q0": {"consumers": 0}, "q2": {"consumers": 0}}
    found = shown(interval(now=("q1", "q0", "q2", "q3"), states=states))
    assert found["problems", "no-consumer"] == 2
    assert found["ring_drifted",] == 1
    assert found["problems", "ring-drifted"] >= 1
    assert 0 < found["misrouted_share",] < 1
    assert found["queue_problem", "q0", "no-consumer"] == 1
    assert ("queue_problem", "q3", "no-consumer") not in found


def test_messages_are_counted_over_intervals() -> None:
    found = shown(interval(received={"q0": 5}), interval(received={"q0": 7}))
    assert (found["received_total", "q0"], found["handled_total", "q0"]) == (12, 12)


def test_series_end_with_their_queue_and_count_from_zero_if_it_returns() -> None:
    metrics = Metrics()
    metrics.show(interval(QUEUES))
    metrics.show(interval(QUEUES[:3]))
    assert not [series for series in samples(metrics) if "q3" in series]
    metrics.show(interval(QUEUES))
    assert samples(metrics)["received_total", "q3"] == 100


def test_an_unreachable_broker_has_no_depths_and_an_unknown_ring() -> None:
    found = shown(interval(), interval(reachable=False))
    assert (found["broker_reachable",], found["ring_unknown",]) == (0, 1)
    assert found["problems", "broker-unreachable"] == 1
    assert not [series for series in found if series[0] in {"queue_messages", "misrouted_share"}]
    assert found["received_total", "q0"] == 100


def test_hostile_names_are_label_values() -> None:
    found = shown(interval(HOSTILE))
    assert {series[1] for series in found if series[0] == "expected_share"} == set(HOSTILE)
