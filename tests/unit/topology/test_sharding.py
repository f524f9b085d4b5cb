"""The sharding plugin's queues, from policy and nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rabbit_chx import ConsistentHashExchange, ModulusHashExchange, Unpredictable
from rabbit_chx.topology.model import Binding, Exchange, Policy, Topology
from rabbit_chx.topology.sharding import Sharding, sharding_of
from tests.unit.complaints import complaint

POLICY = Policy("shards", "^logs$", "exchanges", {"shards-per-node": 3, "routing-key": "1234"})
TOPOLOGY = Topology(
    exchanges=(Exchange("logs", "x-modulus-hash"), Exchange("other", "topic")), policies=(POLICY,)
)
NODES = ("rabbit@a", "rabbit@b")


def test_the_policy_that_applies_makes_shards_on_every_node():
    sharding = sharding_of(TOPOLOGY, "logs", NODES)
    assert sharding == Sharding("logs", 3, "1234", NODES)
    assert sharding.shards == (
        "sharding: logs - rabbit@a - 0",
        "sharding: logs - rabbit@a - 1",
        "sharding: logs - rabbit@a - 2",
        "sharding: logs - rabbit@b - 0",
        "sharding: logs - rabbit@b - 1",
        "sharding: logs - rabbit@b - 2",
    )


def test_without_a_policy_there_are_no_shards():
    assert sharding_of(TOPOLOGY, "other", NODES) is None
    higher = Policy("higher", "logs", "all", {"alternate-exchange": "x"}, priority=1)
    assert sharding_of(replace(TOPOLOGY, policies=(POLICY, higher)), "logs", NODES) is None
    assert "logs, other" in complaint(lambda: sharding_of(TOPOLOGY, "nope", NODES)).expected


def test_a_policy_that_the_sharding_writes_is_read_back():
    sharding = Sharding("logs (eu)", 2, "7", NODES)
    topology = Topology(
        exchanges=(Exchange("logs (eu)", "x-modulus-hash"),), policies=(sharding.policy("p"),)
    )
    assert sharding_of(topology, "logs (eu)", NODES) == sharding


@pytest.mark.parametrize("value", ["2", 2.5, -1, True, None])
def test_a_number_of_shards_that_is_none(value):
    policy = replace(POLICY, definition={"shards-per-node": value})
    assert (
        "'shards'"
        in complaint(lambda: sharding_of(replace(TOPOLOGY, policies=(policy,)), "logs", NODES)).what
    )


def test_a_routing_key_that_is_no_text():
    policy = replace(POLICY, definition={"shards-per-node": 1, "routing-key": 1234})
    assert (
        "in quotes"
        in complaint(lambda: sharding_of(replace(TOPOLOGY, policies=(policy,)), "logs", NODES)).hint
    )


def test_the_mirror_of_a_modulus_hash_counts_the_shards_by_their_names():
    # As text: the tenth comes before the second.
    mirror = Sharding("logs", 11, "x", ("rabbit@a",)).mirror()
    assert isinstance(mirror, ModulusHashExchange)
    assert [name.rpartition(" ")[2] for name in mirror.destinations] == [*"01", "10", *"23456789"]


def test_modulus_shards_are_unpredictable_on_khepri_before_4_3():
    sharding = Sharding("logs", 2, "x", NODES)
    for release, store in (("4.0", "khepri"), ("4.2", None)):
        with pytest.raises(Unpredictable):
            sharding.mirror(release=release, store=store)
    for release in ("3.10", "4.0", "4.3"):
        assert len(sharding.mirror(release=release).destinations) == 4


def test_the_mirror_of_a_consistent_hash_has_the_routing_key_for_its_weight():
    mirror = Sharding("logs", 2, "3", ("rabbit@a",)).mirror("x-consistent-hash")
    assert isinstance(mirror, ConsistentHashExchange)
    assert [name[-1] for name in mirror.ring.bucket_map] == ["0", "0", "0", "1", "1", "1"]


def test_in_a_cluster_only_the_ring_tells_who_was_bound_first():
    with pytest.raises(Unpredictable, match="from the node"):
        Sharding("logs", 2, "1", NODES).mirror("x-consistent-hash")


def test_other_types_have_no_mirror():
    assert complaint(lambda: Sharding("logs", 2, "1", NODES).mirror("fanout")).got == "fanout"


def test_shards_of_a_former_policy_are_left_behind():
    names = [f"sharding: logs - rabbit@a - {number}" for number in range(4)]
    bindings = [Binding("logs", name, "1234") for name in [*names, "mine", "sharding: logs - rabbit@a - x"]]
    topology = replace(
        TOPOLOGY, bindings=(*bindings, Binding("logs", names[3], "other"), Binding("other", names[3]))
    )
    assert Sharding("logs", 2, "1234", ("rabbit@a",)).left_behind(topology) == tuple(names[2:])
