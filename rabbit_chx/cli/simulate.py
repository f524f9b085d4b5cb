"""``rabbit-chx simulate``: how a sample of keys, or all possible keys, spread over the queues."""

from __future__ import annotations

from dataclasses import asdict

import click

from rabbit_chx.base.text import counted
from rabbit_chx.cli.ask.described import Described, exchange_options
from rabbit_chx.cli.ask.key_file import predicted
from rabbit_chx.cli.ask.options import keys_option, output_option, raw_option
from rabbit_chx.cli.show.output import print_json, waiting
from rabbit_chx.cli.show.tables import Table, show
from rabbit_chx.cli.verb import option, verb
from rabbit_chx.mirror.exchange import ConsistentHashExchange
from rabbit_chx.mirror.ring import noun_of
from rabbit_chx.mirror.skew import Spread, Tally, whole


@verb(
    examples=[
        "rabbit-chx simulate --queue q0 --queue q1 --queue q2=2",
        "rabbit-chx simulate --keys customers.txt --queue q0 --queue q1",
        "rabbit-chx simulate --exchange orders --url amqp://user@host/",
        "cut -f1 orders.tsv | rabbit-chx simulate --keys - -f topology.yaml --hot 3",
    ],
)
@exchange_options
@keys_option(help="The sample, one key per line; - is stdin.")
@raw_option
@option(
    "--hot",
    type=click.IntRange(0, 1000),
    default=10,
    show_default=True,
    metavar="N",
    help="How many of the hottest keys to list.",
)
@output_option
def simulate(*, described: Described, keys_file: str | None, raw: bool, hot: int, output: str) -> None:
    """Show how keys spread: rows and share of each queue, skew, chi-squared, and the hottest keys.

    A key counts as often as it occurs in the sample. Without --keys, the sample is all possible keys.
    """
    exchange = described.mirror()
    if keys_file is None:
        with waiting("Counting the keys of each bucket"):
            found = whole(exchange)
    else:
        found = spread_of(exchange, keys_file, raw=raw, hot=hot)
    if output == "json":
        _print_as_json(found, sample=keys_file is not None)
    else:
        _print(found, noun_of(exchange.destinations), sample=keys_file is not None)


def spread_of(exchange: ConsistentHashExchange, path: str, *, raw: bool = False, hot: int = 10) -> Spread:
    """How the keys of a file spread."""
    tally = Tally(exchange)
    part = exchange._hash_on.part
    for column, buckets in predicted(path, part, exchange.bucket_many, raw=raw, title="Counting"):
        tally.add(map(column.__getitem__, range(len(column))), exchange._owners[buckets])
    return tally.spread(hot=hot)


def _print_as_json(found: Spread, *, sample: bool) -> None:
    for queue in found.queues:
        counts = {"rows": queue.rows, "keys": queue.keys, "exact": queue.exact} if sample else {}
        print_json("queue", queue=queue.queue, share=queue.share, **counts)
    for one in found.hot:
        print_json("hot_key", **asdict(one))
    summary: dict[str, object] = {"queues": len(found.queues), "max_over_mean": found.skew}
    if sample:
        summary |= {"rows": found.rows, "keys_are_estimated": found.about, "chi_squared": found.chi_squared}
        summary |= {"degrees_of_freedom": found.degrees_of_freedom, "p_value": found.p_value}
    print_json("summary", **summary)


def _print(found: Spread, noun: str, *, sample: bool) -> None:
    over = counted(len(found.queues), noun)
    keys = "keys (about)" if found.about else "keys"
    numbers = ("rows", "share", "exact", keys) if sample else ("share",)
    shown = Table("queue", *numbers, right=numbers)
    for queue in found.queues:
        cells = [f"{queue.rows:,}", f"{queue.share:.2%}", f"{queue.exact:.2%}", f"{queue.keys:,}"]
        shown.add_row(queue.queue, *(cells if sample else [f"{queue.share:.3%}"]), queue.share)
    if not sample:
        fullest = f"The fullest {noun} gets {found.skew:.3f} times the mean."
        show(shown, fullest, title=f"All possible keys on {over}")
        return
    hot = Table(
        "hottest keys", "rows", "share", "queue", right=("rows", "share"), wrapped=("hottest keys", "queue")
    )
    for one in found.hot:
        hot.add_row(one.key, f"{one.rows:,}", f"{one.share:.2%}", one.queue)
    summary = (
        f"The fullest {noun} gets {found.skew:.2f} times the mean. Chi-squared is {found.chi_squared:,.1f} with "
        f"{found.degrees_of_freedom} degrees of freedom: {found.verdict}"
    )
    show(
        shown,
        *[hot] * bool(found.hot),
        summary,
        title=f"{counted(found.rows, 'row')} on {over}",
    )
