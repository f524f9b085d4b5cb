"""``rabbit-chx parity``: compare the mirror with a real broker, message by message."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import click
import pika

from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.amqp import connect, server_version
from rabbit_chx.broker.scratch import Scratch
from rabbit_chx.cli.ask.options import (
    BROKER,
    Login,
    broker_options,
    count_option,
    other_release_option,
    output_option,
    refuse,
    store_option,
    vhost_option,
)
from rabbit_chx.cli.completion import releases
from rabbit_chx.cli.show.output import echo, print_json, progress, waiting
from rabbit_chx.cli.show.tables import Table, show
from rabbit_chx.cli.verb import Exit, option, verb
from rabbit_chx.mirror.exchange import ConsistentHashExchange
from rabbit_chx.mirror.releases import Release

_SHOWN: Final = 10
_WEIGHTS: Final = {"a": 1, "b": 2, "c": 1, "d": 5, "e": 1}
_HASHED: Final[dict[str, tuple[dict[str, str], Callable[[str], tuple[str, dict[str, Any]]]]]] = {
    "routing key": ({}, lambda key: (key, {})),
    "header 'tenant'": ({"hash_header": "tenant"}, lambda key: ("", {"headers": {"tenant": key}})),
    "property message_id": ({"hash_property": "message_id"}, lambda key: ("", {"message_id": key})),
}
"""What is hashed: the arguments of the exchange, and the routing key and properties of a message with a key."""


@verb(
    examples=[
        "AMQP_URL=amqp://user:password@host rabbit-chx parity",
        "rabbit-chx parity --throw-away 4.0",
    ],
    exit_codes={Exit.FINE: "no differences", Exit.DIFFERENT: "differences found"},
)
@broker_options
@vhost_option
@option(
    "--throw-away",
    group=BROKER,
    metavar="R",
    shell_complete=releases,
    help="Start a throw-away broker of this release instead of --url.",
)
@count_option("-n", "--messages", default=10_000, show_default=True, help="Number of messages.")
@other_release_option(help="Mirror this release instead of the broker's.")
@store_option(help="The broker's metadata store.")
@output_option
def parity(
    *,
    url: str | BrokerUrl | None,
    login: Login,
    throw_away: str | None,
    messages: int,
    release: str | None,
    store: str | None,
    output: str,
) -> int:
    """Publish keys through scratch exchanges of a broker, and compare the queues with the mirror's.

    Routing keys, a hash header and a hash property are compared, before and after a queue is unbound and bound
    again. The user needs configure, write and read permissions for names that begin with rabbit-chx.scratch.
    """
    with _broker(url, login, throw_away) as connection:
        mirrored = Release.parse(release or server_version(connection), store=store)
        if output == "table":
            echo(f"RabbitMQ {mirrored}, {messages:,} messages")
        results = _compared(connection, mirrored, messages)
    _print(results, output)
    return Exit.DIFFERENT if any(result["differences"] for result in results) else Exit.FINE


@contextmanager
def _broker(
    url: str | BrokerUrl | None, login: Login, throw_away: str | None
) -> Iterator[pika.BlockingConnection]:
    if throw_away is None and url is None:
        raise click.UsageError("missing broker URL: pass --url, set AMQP_URL, or use --throw-away")
    with ExitStack() as opened:
        if throw_away is not None:
            refuse("url", "vhost", on="a throw-away broker")
            from rabbit_chx.testing import Broker

            with waiting("Starting a throw-away broker"):
                url = opened.enter_context(Broker(release=throw_away)).url
            login = Login(credentials=None, tls=None)
        assert url is not None
        yield opened.enter_context(connect(url, **login))


def _compared(connection: pika.BlockingConnection, release: Release, messages: int) -> list[dict[str, Any]]:
    """Compare messages for each part that an exchange can hash."""
    part = messages // 5
    counts = (messages - 2 * part, part, part)
    return [_compare(connection, release, *case) for case in zip(_HASHED, counts, strict=True)]


def _compare(connection: pika.BlockingConnection, release: Release, title: str, count: int) -> dict[str, Any]:
    hash_arguments, message = _HASHED[title]
    arguments = {name.replace("_", "-"): value for name, value in hash_arguments.items()}
    scratch = Scratch(connection, arguments=arguments, release=release)
    for queue, weight in _WEIGHTS.items():
        scratch.bind(queue, weight)
    differences: list[dict[str, str]] = []
    with progress(f"Publishing by {title}", count) as advance:
        for size in (count - count // 2, count // 2):
            exchange = ConsistentHashExchange(scratch.ring, **hash_arguments)
            keys = [f"{title[0]}-{secrets.token_hex(6)}" for _ in range(size)]
            scratch.publish(map(message, keys), advance)
            predicted = exchange.route_many(keys)
            for key, index, actual in zip(keys, predicted.tolist(), scratch.landed(size), strict=True):
                expected = str(exchange.destinations[index])
                if actual != expected:
                    differences.append({"key": key, "predicted": expected, "actual": actual})
            # The second half goes through another ring, with the middle queue at the end.
            scratch.unbind("b")
            scratch.bind("b", 3)
    return {"hashed": title, "messages": count, "differences": differences}


def _print(results: list[dict[str, Any]], output: str) -> None:
    if output == "json":
        for result in results:
            print_json("comparison", **result)
        return
    shown = Table("hashed", "messages", "differences", right=("messages", "differences"), wrapped=("hashed",))
    for result in results:
        shown.add_row(result["hashed"], f"{result['messages']:,}", f"{len(result['differences']):,}")
    lines = [
        "  {key}: predicted {predicted}, landed on {actual}".format(**difference)
        for result in results
        for difference in result["differences"][:_SHOWN]
    ]
    agreed = "The mirror and this broker agree on every message."
    differ = "The mirror and this broker differ. Check the release and the store (--release, --store)."
    show(shown, *lines, differ if lines else agreed)
