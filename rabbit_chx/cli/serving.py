"""The option ``--serve`` of ``watch``: serve the intervals as a page and as metrics."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from rabbit_chx.cli.output import echo
from rabbit_chx.cli.verb import option
from rabbit_chx.watch import Interval
from rabbit_chx.watch.access import TOKEN_VARIABLE, Access, Address

serve_option: Final = option(
    "--serve",
    "address",
    metavar="HOST:PORT",
    help="Serve a page that updates itself, and /metrics for Prometheus. An address that other machines can reach needs "
    f"a token in {TOKEN_VARIABLE}.",
)


@contextmanager
def served(intervals: Iterable[Interval], address: str | None) -> Iterator[Iterable[Interval]]:
    """Yield the intervals; with an address, also serve each interval before it is yielded."""
    if address is None:
        yield intervals
        return
    from rabbit_chx.watch.server import Server

    access = Access(Address.parse(address), os.environ.get(TOKEN_VARIABLE) or None)
    with Server(access) as server:
        echo(f"Serving {server.url}", err=True)
        yield _shown(intervals, server.show)


def _shown(intervals: Iterable[Interval], show: Callable[[Interval], None]) -> Iterator[Interval]:
    for interval in intervals:
        show(interval)
        yield interval
