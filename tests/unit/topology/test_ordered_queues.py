"""Findings about ordered queues: delivery limits, delayed messages, and the faults of a release."""

from __future__ import annotations

import pytest

from rabbit_chx import Release, ToExchange
from rabbit_chx.topology.checks.drift import drift
from rabbit_chx.topology.checks.lint import lint
from rabbit_chx.topology.model import Binding, Exchange, Observed, Policy, Queue, Topology
from rabbit_chx.topology.planning.plan import plan
from rabbit_chx.topology.planning.steps import DeclareQueue

SINGLE = {"x-single-active-consumer": True}
UNLIMITED = {**SINGLE, "x-delivery-limit": -1}
LIMIT_5 = {**SINGLE, "x-delivery-limit": 5}
OLD, MIDDLE, NEW = "3.10", "4.2.0", "4.3.6"


def ordered(arguments=UNLIMITED, *names: str, **policy: object) -> Topology:
    queues = tuple(Queue(name, "quorum", arguments=arguments) for name in names or ("a",))
    definition = {name.replace("_", "-"): value for name, value in policy.items()}
    return Topology(queues=queues, policies=(Policy("p", ".*", "queues", definition),) if definition else ())


def codes(topology: Topology, release: str | None = NEW, observed: Observed | None = None) -> list[str]:
    return [each.code for each in lint(topology, observed, release=release)]


def seen(topology: Topology, release: str) -> Observed:
    return Observed(topology, Release.parse(release), exchange_types=frozenset({"x-consistent-hash"}))


@pytest.mark.parametrize(
    ("topology", "old", "new"),
    [
        (ordered(UNLIMITED), False, False),
        (ordered(SINGLE), False, True),
        (ordered(LIMIT_5), True, True),
        (ordered(UNLIMITED, delivery_limit=5), True, True),
        (ordered(SINGLE, max_length=5), False, True),
        (ordered(LIMIT_5, delivery_limit=-1), True, True),  # the lowest that is not negative
        (ordered(SINGLE, delivery_limit=-1), None, False),  # 3.10 refuses the policy
        (Topology(queues=(Queue("a", "quorum"), Queue("b", arguments=SINGLE))), False, False),
    ],
)
def test_a_delivery_limit_of_an_ordered_queue_is_found(topology, old, new):
    assert ("delivery-limit" in codes(topology, NEW)) == new == ("delivery-limit" in codes(topology, None))
    if old is not None:
        assert ("delivery-limit" in codes(topology, OLD)) == old


def test_a_finding_names_the_first_queues():
    (finding,) = lint(ordered(SINGLE, *"abcdefg"))
    assert finding.where == "queues 'a', 'b', 'c', 'd', 'e' and 2 more"


def test_what_delays_messages_of_ordered_queues_is_found():
    assert codes(ordered({**UNLIMITED, "x-delayed-retry-type": "all"})) == ["delayed-retry"]
    assert codes(ordered(delayed_retry_min=1000)) == ["delayed-retry"]
    delayed = Topology(
        exchanges=(Exchange("later", "x-delayed-message"), Exchange("orders", "x-consistent-hash")),
        queues=ordered().queues,
        bindings=(Binding("later", ToExchange("orders")), Binding("orders", "a", "1")),
    )
    (finding,) = lint(delayed)
    assert (finding.code, finding.where) == ("delayed-exchange", "exchange 'later'")


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("3.10", []),
        ("4.0", ["takeover"]),
        ("4.1.8", ["takeover"]),
        ("4.2.0", []),
        ("4.3.0", ["consumer-timeout"]),
        ("4.3.5", ["consumer-timeout"]),
        ("4.3.6", []),
    ],
)
def test_the_faults_of_a_release_are_found_where_there_are_ordered_queues(release, expected):
    assert codes(ordered(), release) == expected
    assert codes(Topology(queues=(Queue("a", "quorum"),)), release) == []


@pytest.mark.parametrize(("release", "arguments"), [(OLD, SINGLE), (MIDDLE, UNLIMITED), (NEW, UNLIMITED)])
def test_an_ordered_queue_is_declared_without_a_limit_on_each_release(release, arguments):
    # On 3.10 a limit of -1 drops a message the first time that it is returned.
    (step,) = plan(ordered(), seen(Topology(), release)).steps
    assert step == DeclareQueue(Queue("a", "quorum", arguments=arguments))


def test_an_existing_queue_is_not_drift_and_the_finding_says_how_to_lift_its_limit():
    wanted, before = ordered(UNLIMITED, "a", "b"), ordered(SINGLE, "a", "b")
    found = plan(wanted, seen(before, NEW))
    assert not found.steps
    assert not found.refusals
    assert drift(wanted, seen(before, NEW)) == ()
    (finding,) = lint(wanted, seen(before, NEW))
    assert (finding.code, finding.where) == ("delivery-limit", "queues 'a', 'b'")
    assert "a policy with delivery-limit: -1" in finding.message


@pytest.mark.parametrize(
    ("wanted", "there", "release"),
    [
        (ordered(), ordered(), NEW),
        (ordered(), ordered(SINGLE), OLD),
        (ordered(), ordered(SINGLE, delivery_limit=-1), NEW),
        (ordered(UNLIMITED, delivery_limit=-1), ordered(SINGLE), NEW),
    ],
)
def test_existing_queues_without_a_limit_have_no_finding(wanted, there, release):
    assert codes(wanted, None, seen(there, release)) == []


def test_a_limit_that_differs_from_the_file_requires_another_queue():
    (refusal,) = plan(ordered(), seen(ordered(LIMIT_5), NEW)).refusals
    assert "x-delivery-limit is 5, the file says -1" in refusal
