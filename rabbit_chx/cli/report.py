"""``rabbit-chx report``: one HTML page about an exchange, with pictures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from rabbit_chx.base.text import counted, text_of
from rabbit_chx.cli.ask.broker_access import BrokerAccess, broker_access_options
from rabbit_chx.cli.ask.described import Located, read_exchange
from rabbit_chx.cli.ask.options import (
    BROKER,
    EXCHANGE,
    FILE,
    READ_FROM_BROKER,
    exchange_option,
    file_option,
    keys_option,
    refuse,
    refuse_pool_size,
    release_option,
    the_exchange,
    worker_pool_option,
)
from rabbit_chx.cli.plan import what_if_options
from rabbit_chx.cli.show.output import echo, replace_file, waiting
from rabbit_chx.cli.simulate import spread_of
from rabbit_chx.cli.verb import option, verb
from rabbit_chx.errors import InvalidValue
from rabbit_chx.mirror.releases import Release
from rabbit_chx.mirror.ring import Ring, noun_of
from rabbit_chx.report import report as make
from rabbit_chx.topology.file.load import load
from rabbit_chx.topology.model import CONSISTENT_HASH, Topology


@verb(
    examples=[
        "rabbit-chx report --file topology.yaml --out orders.html",
        "rabbit-chx report --file topology.yaml --keys customers.txt --out orders.html",
        "rabbit-chx report --file topology.yaml --add 2 --out two-more.html",
        "rabbit-chx report -x orders --url amqp://user@host/ --out orders.html",
        "AMQP_URL=amqp://user:password@host/ rabbit-chx report --live \\\n    --file topology.yaml --out live.html",
    ],
)
@file_option(help="Topology file with the exchange.")
@exchange_option(
    group=EXCHANGE,
    help="Exchange of --file, if several hash; without --file, an exchange of the broker.",
)
@release_option(group=EXCHANGE, help="The broker's release.")
@worker_pool_option
@option("-o", "--out", type=FILE, required=True, metavar="FILE", help="Where to write the page.")
@keys_option(help="A sample of keys, one per line; - is stdin.")
@what_if_options
@option(
    "--live",
    "from_broker",
    group=BROKER,
    is_flag=True,
    help="Take the release and the ring from the broker of --url.",
)
@broker_access_options
def report(
    *,
    live: BrokerAccess,
    from_broker: bool,
    file: str | None,
    exchange: str | None,
    out: str,
    release: str,
    keys_file: str | None,
    changes: dict[str, Any],
    worker_pool_size: int | None,
) -> None:
    """Write a page about an exchange: its ring, exact shares, a sample's skew, and the cost of changes.

    The page is self-contained and can be printed.
    """
    found = _located(live, file, exchange, release, from_broker=from_broker)
    refuse_pool_size(found.release)
    topology, name = found.topology, found.exchange
    sample = None if keys_file is None else spread_of(found.mirror(), keys_file)
    with waiting(f"Counting and drawing exchange {name!r}"):
        made = make(
            topology,
            name,
            release=found.release,
            live=found.rings.get(name),
            sample=sample,
            sample_name="" if keys_file in {None, "-"} else text_of(os.fsencode(Path(str(keys_file)).name)),
            worker_pool_size=worker_pool_size,
            **changes,
        )
    replace_file(out, made.to_html(), option="--out")
    held = made.live.destinations
    echo(f"Wrote {out}: exchange {name!r}, {counted(len(held), noun_of(held))}.")


def _located(
    live: BrokerAccess, file: str | None, exchange: str | None, release: str, *, from_broker: bool
) -> Located:
    """The exchange in the file, with its ring on the broker if that is asked for; or both from the broker."""
    if file is not None:
        topology = load(file)
        name = the_exchange(topology, exchange)
        topology.ring(name, release)  # raises if the exchange has none
        if not from_broker:
            return Located(topology, name, Release.parse(release))
        refuse("release", on=READ_FROM_BROKER)
        ring = _live_ring(live, topology, name)
        return Located(topology, name, ring.release, {name: ring})
    if exchange is None or live.url is None:
        raise click.UsageError("missing --file: pass --file, or --exchange and --url")
    refuse("release", on=READ_FROM_BROKER)
    found = read_exchange(live, exchange)
    found.topology.ring(exchange, found.release)  # raises if the exchange has none
    return found


def _live_ring(live: BrokerAccess, topology: Topology, exchange: str) -> Ring:
    observed = live.read(topology)
    ring, found = observed.rings.get(exchange), observed.topology.exchange(exchange)
    if ring is None or not ring.known:
        if ring is not None:
            why = ring.why_unknown
        elif found is None:
            why = "it is not there"
        else:
            is_ring = found.type == CONSISTENT_HASH
            why = "its weights are invalid there" if is_ring else f"its type there is {found.type}"
        raise InvalidValue(
            "--live",
            f"exchange {exchange!r}: {why}",
            "an exchange of the broker whose ring can be known",
            "--node, --pairs or --probe determine the order of a ring; without --live, the file does",
        )
    return ring
