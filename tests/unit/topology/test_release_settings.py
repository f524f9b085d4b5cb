"""Policies and arguments that a target release refuses or ignores."""

from __future__ import annotations

import pytest

from rabbit_chx import Release
from rabbit_chx.topology.checks.lint import lint
from rabbit_chx.topology.model import Observed, Policy, Queue, Topology
from rabbit_chx.topology.planning.plan import plan

MIRRORED = Topology(policies=(Policy("ha", "^orders", "queues", {"ha-mode": "all", "max-length": 9}),))


def severities(topology: Topology, release: str | None) -> list[str]:
    return [each.severity for each in lint(topology, release=release)]


def queue(kind: str, *, durable: bool = True, **arguments: object) -> Topology:
    named = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return Topology(queues=(Queue("q", kind, durable, arguments=named),))


def policy(apply_to: str = "queues", **definition: object) -> Topology:
    named = {name.replace("_", "-"): value for name, value in definition.items()}
    return Topology(policies=(Policy("p", ".*", apply_to, named),))


# What 3.10.8, 4.0.5 and 4.3.6 answered: tests/broker/test_release_settings.py asks them again.
@pytest.mark.parametrize(
    ("topology", "old", "middle", "new"),
    [
        (MIRRORED, [], ["error"], ["error"]),
        (policy(queue_master_locator="min-masters"), [], [], ["error"]),
        (queue("classic", queue_master_locator="min-masters"), [], [], ["error"]),
        (queue("classic", queue_version=1), [], [], ["error"]),
        (queue("classic", queue_version=2), [], [], []),
        (queue("classic", consumer_timeout=60_000), [], [], ["error"]),
        (queue("quorum", consumer_timeout=60_000), [], [], []),
        (queue("classic", queue_leader_locator="balanced"), ["error"], [], []),
        (policy("quorum_queues", max_length=9), ["error"], [], []),
        (policy(delivery_limit=-1), ["error"], [], []),
        (policy(delivery_limit=5), [], [], []),
        (queue("classic", queue_mode="lazy"), [], ["warning"], ["warning"]),
        (policy(queue_mode="lazy"), [], ["warning"], ["warning"]),
        (queue("quorum", max_in_memory_length=9), ["warning"], ["warning"], ["warning"]),
        (queue("classic", durable=False), [], [], ["warning"]),
    ],
)
def test_a_setting_is_judged_for_the_release(topology, old, middle, new):
    assert [severities(topology, release) for release in ("3.10", "4.0", "4.3")] == [old, middle, new]


def test_without_a_release_a_refused_setting_is_a_warning_that_says_what_to_write():
    (finding,) = lint(MIRRORED)
    assert (finding.severity, finding.code, finding.where) == ("warning", "refused-setting", "policy 'ha'")
    assert finding.message.startswith("RabbitMQ 4.0 and later refuse ha-mode. ")
    assert "quorum queues" in finding.message


def test_a_plan_refuses_what_the_broker_would_refuse_and_keeps_what_it_has_already():
    new = Release.parse("4.3")
    (refusal,) = plan(MIRRORED, Observed(release=new)).refusals
    assert "ha-mode" in refusal
    assert plan(MIRRORED, Observed(release=Release.parse("3.10"))).refusals == ()
    assert plan(MIRRORED, Observed(MIRRORED, release=new)).refusals == ()
