"""``rabbit-chx watch``: show the shares and rates of the queues of a running exchange, and its problems."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Final

import click

from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.management import Management
from rabbit_chx.cli.ask.broker_access import BrokerAccess, live_options, load_topologies, warn_of_tracer
from rabbit_chx.cli.ask.options import BROKER, exchange_option, file_option, node_option, output_option
from rabbit_chx.cli.show.output import echo, end_when_unheard, print_json
from rabbit_chx.cli.show.watch_table import Changes, Screen
from rabbit_chx.cli.verb import Exit, option, verb
from rabbit_chx.errors import InvalidValue
from rabbit_chx.topology.model import Topology, hashing_exchange
from rabbit_chx.watch import Interval, Observer, watch as intervals
from rabbit_chx.watch.tokens import TOKEN_VARIABLE, Access, Address

_MIN_SECONDS: Final = 5
"""The broker updates statistics every five seconds."""


@verb(
    examples=[
        "rabbit-chx watch --exchange orders -U amqp://user@host/ --password-file pw",
        "rabbit-chx watch --exchange orders --file topology.yaml",
        "rabbit-chx watch --exchange orders --output json | jq .problems",
        "rabbit-chx watch --exchange orders --serve 127.0.0.1:8080",
    ],
    exit_codes={Exit.FINE: "ended with Ctrl-C or SIGTERM", Exit.FAILED: "the broker refused the first poll"},
)
@exchange_option(required=True, help="The exchange to watch.")
@option(
    "--interval",
    "seconds",
    type=click.IntRange(min=_MIN_SECONDS),
    default=10,
    show_default=True,
    metavar="SECONDS",
    help="Seconds between polls of the broker; longer if there are many queues.",
)
@file_option(help="Topology file to compare with, instead of the state at the start.")
@option(
    "--serve",
    "address",
    metavar="HOST:PORT",
    help="Serve a page that updates itself, and /metrics for Prometheus. An address that other machines can reach needs "
    f"a token in {TOKEN_VARIABLE}.",
)
@live_options
@node_option(
    group=BROKER,
    help="Command that evaluates Erlang on a node, to read the ring when something has changed: 'docker exec NAME "
    "rabbitmqctl eval'.",
)
@output_option
def watch(
    *,
    exchange: str,
    seconds: int,
    file: str | None,
    address: str | None,
    live: BrokerAccess,
    output: str,
) -> int:
    """Show the queues of an exchange with exact and observed shares, rates and problems, until Ctrl-C.

    In a terminal, the table is refreshed in place. In a pipe, each interval is a line, and so is each problem that
    appears or is resolved. The broker's statistics can be almost ten seconds old.
    """
    broker = live.given
    end_when_unheard()
    wanted = None if file is None else _wanted(file, exchange, broker)
    if wanted is not None:
        broker = broker._at_vhost(wanted.vhost)
    # A broker that hangs is reported within two intervals.
    timeout = min(live.connect_timeout, seconds)
    management = live.management_of(broker, **live.login, timeout=timeout)
    observer = Observer(management, broker.vhost, exchange, node=live.node_command)
    with suppress(KeyboardInterrupt):  # also ends with SIGTERM
        polled = _with_warning(intervals(observer, wanted, seconds=seconds), management, broker.vhost)
        with _served(polled, address) as shown:
            _show(shown, output)
    return Exit.FINE


def _wanted(file: str, exchange: str, broker: BrokerUrl) -> Topology:
    """The topology in the file that contains the exchange."""
    topologies = load_topologies(file, (), broker)
    found = [each for each in topologies if each.exchange(exchange) is not None]
    if not found:
        where = f" of virtual host {topologies[0].vhost!r}" if len(topologies) == 1 else ""
        hint = "Without --file, the exchange is compared with its state at the start"
        raise InvalidValue("--file", file, f"a file with the exchange {exchange!r}{where}", hint)
    if len(found) > 1:
        raise InvalidValue(
            "--file",
            file,
            f"one virtual host with the exchange {exchange!r}",
            "Name the virtual host in the URL",
        )
    hashing_exchange(found[0], exchange)
    return found[0]


def _with_warning(polled: Iterable[Interval], management: Management, vhost: str) -> Iterator[Interval]:
    """The intervals; the tracer is asked for after the first, so that a broker that hangs is reported in time."""
    polled = iter(polled)
    yield from islice(polled, 1)
    warn_of_tracer(management, vhost)
    yield from polled


@contextmanager
def _served(polled: Iterable[Interval], address: str | None) -> Iterator[Iterable[Interval]]:
    """Yield the intervals; with an address, also serve each interval before it is yielded."""
    if address is None:
        yield polled
        return
    from rabbit_chx.watch.server import Server

    with Server(Access(Address.parse(address), os.environ.get(TOKEN_VARIABLE) or None)) as server:

        def shown() -> Iterator[Interval]:
            for interval in polled:
                server.show(interval)
                yield interval

        echo(f"Serving {server.url}", err=True)
        yield shown()


def _show(shown: Iterable[Interval], output: str) -> None:
    if output == "json":
        for interval in shown:
            print_json("interval", **interval.as_dict())
    elif sys.stdout and sys.stdout.isatty():  # none after >&-
        _show_live(shown)
    else:
        changes = Changes()
        for interval in shown:
            for line in changes.lines(interval):
                echo(line)


def _show_live(shown: Iterable[Interval]) -> None:
    from rich.live import Live

    from rabbit_chx.cli.show.tables import console

    screen = Screen()
    with Live(screen, console=console(), screen=True, refresh_per_second=1) as live:
        for interval in shown:
            screen.interval = interval
            live.refresh()
