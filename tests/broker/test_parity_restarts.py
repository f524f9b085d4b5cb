"""Restarts: what they do to a ring, per metadata store, and that parity holds again from the ring as it is read."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

import pytest

from rabbit_chx import ModulusHashExchange, Release, Ring, Store, ToExchange, infer
from rabbit_chx.errors import RingUnknown
from rabbit_chx.testing import Broker
from tests.broker.erlang import asked_quickly
from tests.broker.parity import Lab, Scratch, assert_same
from tests.broker.parity_clients import Message
from tests.broker.ring_fire import Fire
from tests.proof import LONG

pytestmark = [
    pytest.mark.newest_first,
    pytest.mark.broker,
    pytest.mark.proves(
        "Routing", "parity: restarts", "the comparison fails on one message that lands elsewhere"
    ),
]

# "restart" is the whole node, "restart_app" stops and starts RabbitMQ inside it.
ROUNDS = [(seed, "restart_app" if seed % 2 else "restart") for seed in range(2, 7 if LONG else 4)]
ROUNDS[1:] = [pytest.param(*each, marks=[pytest.mark.long, pytest.mark.proof]) for each in ROUNDS[1:]]

BINDINGS = [
    ("q7", "2"),
    ("q1", "10"),
    (ToExchange("x3"), "1"),
    ("q10", "3"),
    ("q2", "007"),
    ("q9", "1"),
    ("a", "5"),
]
BINDINGS += [("q3", "1"), (ToExchange("x1"), "2"), ("Q", "+4"), ("q8", "1"), ("q0", "3")]

MODULUS = [
    ("q5", ""),
    ("q1", "b"),
    ("q10", "a"),
    ("q1", "a"),
    (ToExchange("x7"), "c"),
    ("q2", "é"),
    ("q1", "A"),
]


@pytest.fixture
def own(lab):
    if lab.broker.source.kind == "external":
        pytest.skip("the broker of RABBIT_CHX_BROKER_URL is not ours to restart")
    return lab


@pytest.mark.long
@pytest.mark.parametrize(("seed", "how"), ROUNDS)
def test_after_a_restart_the_ring_is_kept_or_unknown_and_parity_holds_from_the_ring_as_read(own, seed, how):
    keys = [f"customer-{seed}-{i}" for i in range(400)]
    with (
        Fire(own, random.Random(f"restart {seed}"), exchanges=8) as fire,
        own.exchange(BINDINGS) as x,
        own.exchange({"only": 3}, name="single") as single,
        Scratch(own, "modulus") as modulus,
    ):
        fire.until_dead(5)
        modulus.declare("x-modulus-hash")
        for destination, key in MODULUS:
            modulus.bind(destination, key)

        fire.restart(how)

        for used in (x, single, modulus):
            used.reconnect()
        own.compare_rings({single.name: single.mirror.ring.after_restart()})
        ring = rings_after_restart(own, {x.name: x.mirror.ring})[x.name]
        x.mirror = x.mirror.with_ring(ring)
        landed = x.check(map(Message, keys), "pika")
        assert infer(zip(keys, landed, strict=True), BINDINGS, release=own.release).ring.runs == ring.runs
        check_modulus(own, modulus, keys)
        fire.run(20, [])  # the exchanges can still be changed
        assert not fire.wrong


def rings_after_restart(lab, before):
    """The rings that the mirror foretells, held against the broker's; or read, where it says they are unknown."""
    foretold = {name: ring.after_restart() for name, ring in before.items()}
    if lab.release.store is Store.KHEPRI:
        lab.compare_rings(foretold)
        lab.tally.rebuilt["kept as foretold"] += len(foretold)
        return foretold
    read = {}
    for name, buckets in lab.rings(before).items():
        with pytest.raises(RingUnknown):
            foretold[name].bucket_map  # noqa: B018 - asking is the test
        bindings = before[name].bindings
        read[name] = Ring.read(buckets, bindings=bindings, release=lab.release)
        assert_same_destinations(read[name])
        in_order = before[name].after_restart(worker_pool_size=1)
        lab.tally.rebuilt["sorted" if read[name].runs == in_order.runs else "in another order"] += 1
        lab.tally.rings += 1
    return read


def assert_same_destinations(ring):
    """Nothing is known of the order, but all bound destinations live, each with one of its weights."""
    weights = defaultdict(set)
    for binding in ring.bindings:
        weights[binding.destination].add(binding.weight)
    assert dict(ring.runs).keys() == weights.keys()
    assert len(ring.runs) == len(weights)
    assert all(weight in weights[destination] for destination, weight in ring.runs)
    assert not ring.dead


def check_modulus(lab, modulus, keys):
    mirror = ModulusHashExchange(MODULUS, release=lab.release)
    landed = modulus.send([Message(key) for key in keys], "aio-pika")
    assert_same(keys, [mirror.route(key) for key in keys], landed)


@pytest.fixture(scope="module")
def single_worker(broker):
    """A broker of the same release that rebuilds rings with one worker."""
    if broker.source.kind == "external":
        pytest.skip("the broker of RABBIT_CHX_BROKER_URL is not ours to configure")
    config = {"default_worker_pool_size": "1"}
    with (
        Broker(broker.release, plugins=["rabbitmq_sharding"], config=config) as single,
        asked_quickly(single),
    ):
        lab = Lab(single)
        lab.tally.broker += " with one worker"
        yield lab


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "how"), [(7, "restart_app"), pytest.param(8, "restart", marks=pytest.mark.proof)]
)
def test_with_one_worker_a_restart_leaves_the_order_that_the_mirror_says(single_worker, seed, how):
    lab = single_worker
    dice = random.Random(f"one worker {seed}")
    with Fire(lab, dice, exchanges=8, workers=1) as fire, lab.exchange(BINDINGS) as x:
        fire.until_dead(5)

        fire.restart(how)

        x.reconnect()
        x.mirror = x.mirror.with_ring(x.mirror.ring.after_restart(worker_pool_size=1))
        lab.compare_rings({x.name: x.mirror.ring})
        lab.tally.rebuilt["as foretold"] += 1
        x.check((Message(f"customer-{seed}-{i}") for i in range(400)), "pika")
        fire.run(20, [])
        assert not fire.wrong
        assert not fire.reread


@pytest.mark.long
def test_a_node_that_switches_to_khepri_keeps_its_rings_from_then_on(single_worker):
    lab = single_worker
    if lab.release.store is Store.KHEPRI or lab.release.typed_headers:
        return  # it has no such switch
    with Fire(lab, random.Random("switch"), exchanges=8) as fire:
        fire.until_dead(5)
        lab.broker.ctl("enable_feature_flag", "--opt-in", "khepri_db")
        release = Release.parse(lab.release, store=lab.broker.store)
        assert release.store is Store.KHEPRI
        fire.mirror = {name: replace(ring, release=release) for name, ring in fire.mirror.items()}
        fire.step()

        fire.restart("restart_app")

        assert not fire.wrong
        assert not fire.reread
