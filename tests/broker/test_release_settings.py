"""The table of settings that releases refuse, compared with what each release answers."""

from __future__ import annotations

import pytest

from rabbit_chx.errors import RabbitChxError
from rabbit_chx.mirror.releases import Release
from rabbit_chx.topology.checks.release_settings import SETTINGS, release_refusals
from rabbit_chx.topology.model import Policy, Queue, Topology

pytestmark = [pytest.mark.broker]

VALUES = {
    "ha-params": 1,
    "ha-mode": "all",
    "ha-sync-mode": "manual",
    "ha-sync-batch-size": 5,
    "ha-promote-on-shutdown": "always",
    "ha-promote-on-failure": "always",
    "queue-master-locator": "client-local",
    "queue-version": 1,
    "queue-mode": "lazy",
    "consumer-timeout": 60_000,
    "ha-policy": "all",
}


def definitions() -> list[dict[str, object]]:
    """Each key of a policy in the table, with the key that 3.10 wants beside it."""
    keys = [each.name for each in SETTINGS if each.in_policies]
    mirrored = {"ha-mode": "exactly", "ha-params": 1}
    return [
        {**(mirrored if key.startswith("ha-") and key != "ha-mode" else {}), key: VALUES.get(key, 5)}
        for key in keys
    ]


def test_the_broker_refuses_exactly_the_policies_that_the_table_says(site):
    release = Release.parse(site.management.overview().release)
    typed = [
        Policy("p", "^zz", each, {"max-length": 5}) for each in ("classic_queues", "quorum_queues", "streams")
    ]
    limits = [Policy("p", "^zz", "queues", {"delivery-limit": limit}) for limit in (-1, 5)]
    for policy in [*(Policy("p", "^zz", "queues", each) for each in definitions()), *typed, *limits]:
        try:
            site.management.put_policy(site.vhost, policy)
            is_refused = False
        except RabbitChxError:
            is_refused = True
        assert is_refused == bool(release_refusals(Topology(policies=(policy,)), Topology(), release)), policy


def test_the_broker_refuses_exactly_the_arguments_that_the_table_says(site):
    release = Release.parse(site.management.overview().release)
    for setting in (each for each in SETTINGS if each.in_arguments):
        kind = "quorum" if setting.name.startswith("max-in") else "classic"
        queue = Queue(f"q.{setting.name}", kind, arguments={f"x-{setting.name}": VALUES.get(setting.name, 5)})
        body = {"durable": True, "arguments": queue._declared_arguments}
        try:
            site.management._request("PUT", ["queues", site.vhost, queue.name], body=body)
            is_refused = False
        except RabbitChxError:
            is_refused = True
        assert is_refused == bool(release_refusals(Topology(queues=(queue,)), Topology(), release)), queue
