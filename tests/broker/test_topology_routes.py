"""Messages through a topology of many exchanges: where the mirror says, and where the broker put them."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

import pika
import pytest

from rabbit_chx import ToExchange
from rabbit_chx.topology.model import Binding, Exchange, Queue, Topology
from rabbit_chx.topology.routes import Router
from tests.broker.topology_site import Site, declare
from tests.inbox import emptied
from tests.queues import a_channel

pytestmark = [pytest.mark.broker, pytest.mark.newest_first]

WORDS = ["a", "b", "c", ""]
PATTERNS = ["#", "a.#", "#.b", "*", "*.b", "a.*.c", "", "#.b.#", "b", "a.b.c"]
VALUES = ["eu", "us", 1, 2, True, None]
HEADERS = ["tenant", "x-trace", "size"]
MATCHES = [{}, {"x-match": "all"}, {"x-match": "any"}, {"x-match": "all-with-x"}, {"x-match": "any-with-x"}]
TYPES = ["direct", "fanout", "topic", "headers", "x-consistent-hash", "x-modulus-hash"]


def random_topology(rng: random.Random) -> Topology:
    """Two exchanges of each type, bound to one another and to queues; circles are likely."""
    names = {f"routes.{type_}.{number}": type_ for type_ in TYPES for number in range(2)}
    queues = [f"routes.q{number}" for number in range(10)]
    exchanges = []
    for name, type_ in names.items():
        arguments = {"alternate-exchange": rng.choice(list(names))} if rng.random() < 0.5 else {}
        if type_ == "x-consistent-hash" and name.endswith("1"):
            arguments["hash-header"] = "tenant"
        exchanges.append(Exchange(name, type_, arguments=arguments))
    bindings = []
    for name, type_ in names.items():
        destinations = [*rng.sample(queues, 3), *map(ToExchange, rng.sample(list(names), 1))]
        bindings += [
            Binding(name, destination, *key_and_arguments(type_, rng)) for destination in destinations
        ]
        if type_ == "x-modulus-hash":
            bindings.append(replace(bindings[-2], arguments={"owner": "another binding"}))
    return Topology(exchanges=tuple(exchanges), queues=tuple(map(Queue, queues)), bindings=tuple(bindings))


def key_and_arguments(type_: str, rng: random.Random) -> tuple:
    match type_:
        case "topic":
            return (rng.choice(PATTERNS),)
        case "headers":
            return ("", rng.choice(MATCHES) | {name: rng.choice(VALUES) for name in rng.sample(HEADERS, 2)})
        case "x-consistent-hash":
            return (str(rng.randrange(1, 4)),)
        case _:
            return (".".join(rng.choices(WORDS, k=rng.randrange(3))),)


def random_message(topology: Topology, rng: random.Random) -> tuple[str, str, dict]:
    exchange = rng.choice(topology.exchanges).name if rng.random() < 0.95 else ""
    key = ".".join(rng.choices(WORDS, k=rng.randrange(4))) if exchange else rng.choice(topology.queues).name
    headers = {name: rng.choice(VALUES) for name in rng.sample(HEADERS, rng.randrange(4))}
    if rng.random() < 0.2:
        headers[rng.choice(["CC", "BCC"])] = [".".join(rng.choices(WORDS, k=2))]
    return exchange, key, headers


def test_random_messages_through_random_topologies_land_in_the_queues_that_the_mirror_names(lab):
    reached = defaultdict(int)
    for seed in range(3):
        rng = random.Random(seed)
        topology = random_topology(rng)
        router = Router(topology, release=lab.release, client="pika")
        messages = [random_message(topology, rng) for _ in range(250)]
        with Site(lab.broker) as site, a_channel(site, confirms=True) as channel:
            declare(channel, topology)
            for number, (exchange, key, headers) in enumerate(messages):
                properties = pika.BasicProperties(headers=headers)
                channel.basic_publish(exchange, key, str(number).encode(), properties)
            landed = defaultdict(set)
            for queue in topology.queues:
                for message in emptied(channel, queue.name):
                    assert queue.name not in landed[int(message.body)]
                    landed[int(message.body)].add(queue.name)
        for number, (exchange, key, headers) in enumerate(messages):
            expected = router.route(exchange, key, headers=headers)
            assert set(expected) == landed[number], (seed, exchange, key, headers)
            reached[len(expected)] += 1
    assert len(reached) > 4, f"too dull a test: {dict(reached)}"
