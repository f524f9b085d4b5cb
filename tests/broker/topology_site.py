"""A virtual host of its own on the broker, for tests that change topologies, and the two ways to apply a plan."""

from __future__ import annotations

import asyncio
import re
import uuid
from dataclasses import replace
from typing import Self
from urllib.parse import quote, urlsplit

import pika

from rabbit_chx import ToExchange
from rabbit_chx.broker.applying.apply import apply, apply_async
from rabbit_chx.broker.management import Management
from rabbit_chx.mirror.ring import name_of
from rabbit_chx.topology.model import CONSISTENT_HASH, Binding, Exchange, Policy, Queue, Topology
from rabbit_chx.topology.planning.steps import (
    Bind,
    DeclareExchange,
    DeclareQueue,
    Plan,
    SetPolicy,
)

CHX = Exchange("orders", CONSISTENT_HASH, arguments={"hash-header": "tenant"})
CLASSIC, QUORUM, STREAM = Queue("plain"), Queue("replicated", "quorum"), Queue("log", "stream")


class Site:
    """A virtual host of its own, and ways to reach it."""

    def __init__(self, broker, name: str = "v/ü") -> None:
        self.broker = broker
        self.vhost = f"{name} {uuid.uuid4().hex[:8]}"
        self.management = Management(
            broker.management_url, credentials=lambda: (broker.username, broker.password)
        )
        self.management._request("PUT", ["vhosts", self.vhost], body={})
        self.grant(broker.username, ".*", ".*", ".*")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.management._request("DELETE", ["vhosts", self.vhost])

    def grant(self, user: str, configure: str, write: str, read: str) -> None:
        patterns = {"configure": configure, "write": write, "read": read}
        self.management._request("PUT", ["permissions", self.vhost, user], body=patterns)

    def url(self, user: str = "", password: str = "") -> str:
        parts = urlsplit(self.broker.url)
        own = f"{user}:{password}" if user else f"{parts.username}:{parts.password}"
        return f"amqp://{own}@{parts.hostname}:{parts.port}/{quote(self.vhost, safe='')}"

    def queue_names(self, pattern: str) -> list[str]:
        names = [queue.name for queue, *_ in self.management.queues(self.vhost)]
        return [name for name in names if re.search(pattern, name)]

    def plan(self, *steps, **more) -> Plan:
        return Plan(self.vhost, steps, **more)

    def connection(self) -> pika.BlockingConnection:
        """Open a pika connection, without heartbeats, because tests leave it idle."""
        return pika.BlockingConnection(pika.URLParameters(self.url() + "?heartbeat=0"))

    def bindings(self) -> str:
        """All bindings of exchanges in Erlang's own words: types of arguments included, order of listing not."""
        vhost = ",".join(str(byte) for byte in self.vhost.encode())
        text = self.broker.eval(
            f"[io:format('~0p~n', [{{element(4, S), K, element(4, D), A}}]) || {{binding, S, K, D, A}} <- "
            f"rabbit_binding:list(<<{vhost}>>), element(4, S) =/= <<>>], done."
        )
        return "\n".join(sorted(text.splitlines()))


def with_pika(given, plan, **options):
    return apply(given, plan, **options)


def with_aio_pika(given, plan, **options):
    return asyncio.run(apply_async(given, plan, **options))


CLIENTS = [with_pika, with_aio_pika]


def foundation(site: Site) -> Plan:
    return site.plan(
        DeclareExchange(CHX),
        DeclareExchange(Exchange("behind", "fanout", internal=True)),
        DeclareExchange(Exchange("front", "topic", arguments={"alternate-exchange": "behind"})),
        DeclareQueue(CLASSIC),
        DeclareQueue(QUORUM),
        DeclareQueue(STREAM),
        DeclareQueue(Queue("limited", arguments={"x-max-length": 10, "x-overflow": "reject-publish"})),
        Bind(Binding("orders", "plain", "2", {"note": 1})),
        Bind(Binding("orders", ToExchange("behind"), "1", {"note": 2})),
        Bind(Binding("orders", "replicated", "3", {"note": 300})),
        Bind(Binding("front", ToExchange("orders"), "order.#")),
        Bind(Binding("behind", "limited")),
        SetPolicy(Policy("limits", "^plain$", "queues", {"max-length": 5}, 3)),
    )


def apply_one_by_one(site: Site, planned: Plan, on_step) -> None:
    """Apply each step as a plan of its own, since `apply` sends those of one kind together."""
    for step in planned.steps:
        apply(
            site.url(),
            replace(planned, steps=(step,), changes=()),
            management=site.management,
            on_step=on_step,
        )


def declare(channel, topology: Topology) -> None:
    """Declare and bind all of a topology, in its order and over AMQP, as an application does."""
    for exchange in topology.exchanges:
        channel.exchange_declare(
            exchange.name, exchange.type, durable=exchange.durable, auto_delete=exchange.auto_delete,
            internal=exchange.internal, arguments=dict(exchange.arguments),
        )  # fmt: skip
    for queue in topology.queues:
        channel.queue_declare(queue.name, durable=True, arguments=queue._declared_arguments)
    for bound in topology.bindings:
        bind = channel.exchange_bind if isinstance(bound.destination, ToExchange) else channel.queue_bind
        bind(name_of(bound.destination), bound.source, bound.key, dict(bound.arguments))
