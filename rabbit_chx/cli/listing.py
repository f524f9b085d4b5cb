"""``rabbit-chx list``: the hash exchanges of a broker, their state, and the next command for each trouble."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from rabbit_chx.base.text import counted
from rabbit_chx.cli.ask.broker_access import BrokerAccess, live_options, note_unproven
from rabbit_chx.cli.ask.options import node_option, output_option
from rabbit_chx.cli.changes import warn_of_cluster
from rabbit_chx.cli.show.output import echo, notice, print_json
from rabbit_chx.cli.show.plan_rows import condense
from rabbit_chx.cli.show.tables import Table, show
from rabbit_chx.cli.verb import Exit, verb
from rabbit_chx.topology.checks.drift import SECOND_BINDING, Drift
from rabbit_chx.topology.checks.survey import NO_CONSUMER, NO_MAJORITY, Surveyed, survey
from rabbit_chx.topology.model import Topology

_LEARN: Final = "rabbit-chx export -V {vhost} --node COMMAND -o FILE && rabbit-chx apply FILE -x {exchange} --node COMMAND"
_REPAIR: Final = "rabbit-chx plan FILE -x {exchange} --node COMMAND"
_NEXT: Final = {
    "ring-unknown": _LEARN,
    "dead-binding": _REPAIR,
    "extra-binding": _REPAIR,
    SECOND_BINDING: "rabbit-chx plan FILE -x {exchange} --prune --node COMMAND",
    NO_MAJORITY: "rabbit-chx doctor",
    NO_CONSUMER: "rabbit-chx watch -V {vhost} -x {exchange}",
}
"""The next command for each kind of trouble."""


@verb(
    "list",
    examples=[
        "rabbit-chx list -U amqp://user@host --password-file pw",
        "rabbit-chx list --vhost orders --node 'docker exec NAME rabbitmqctl eval'",
    ],
    exit_codes={
        Exit.FINE: "no differences; there may be warnings",
        Exit.FAILED: "the broker could not be read",
        Exit.DIFFERENT: "an unknown order, a binding without buckets, or a queue without a majority",
    },
)
@live_options
@node_option()
@output_option
def list_(*, live: BrokerAccess, output: str) -> int:
    """List the hash exchanges and super streams of a broker, with the command that fixes each problem.

    Without --vhost, or one in the URL, it lists those of all virtual hosts. --node also reads the rings.
    """
    named = live.given.named_vhost
    found = {
        vhost: replace(live, url=live.given.with_vhost(vhost)).read(Topology(vhost=vhost), consumers=True)
        for vhost in ([named] if named is not None else live.management.vhosts())
    }
    for number, observed in enumerate(found.values()):
        if number == 0:  # all virtual hosts have the same nodes
            warn_of_cluster(observed)
        note_unproven(observed, observed.rings)
        for what in observed.unseen:
            notice("Not seen", what)
    surveyed = [(vhost, each) for vhost, observed in found.items() for each in survey(observed)]
    if output == "json":
        _print_json(surveyed)
    else:
        _print(surveyed)
    return Exit.DIFFERENT if any(each.differences for _, each in surveyed) else Exit.FINE


def _next(trouble: Drift, vhost: str, exchange: str) -> str:
    return _NEXT[trouble.kind].format(vhost=shlex.quote(vhost), exchange=shlex.quote(exchange))


def _print_json(surveyed: Sequence[tuple[str, Surveyed]]) -> None:
    for vhost, each in surveyed:
        troubles: list[dict[str, Any]] = [
            {
                "kind": one.kind,
                "where": one.where,
                "message": one.message,
                "warning": one not in each.differences,
                "next": _next(one, vhost, each.exchange),
            }
            for one in each.troubles
        ]
        print_json("exchange", vhost=vhost, **asdict(each) | {"troubles": troubles})


def _print(surveyed: Sequence[tuple[str, Surveyed]]) -> None:
    if surveyed:
        numbers = ("destinations", "waiting", "troubles")
        shown = Table(
            *("vhost", "exchange", "kind", "hashes", "destinations", "order", "waiting", "troubles"),
            right=numbers,
            wrapped=("exchange",),
        )
        for vhost, each in surveyed:
            shown.add_row(
                *(vhost, each.exchange, each.kind, each.hashes, f"{each.destinations:,}"),
                each.order or "",
                "" if each.waiting is None else f"{each.waiting:,}",
                str(len(each.troubles) or ""),
            )
        show(shown)
    for vhost, each in surveyed:
        for kind in dict.fromkeys(one.kind for one in each.troubles):
            some = [one for one in each.troubles if one.kind == kind]
            label = "Error" if some[0] in each.differences else "Warning"
            for line in condense(map(str, some)):
                notice(label, f"virtual host {vhost!r}, {line}", err=False)
            echo(f"  Next: {_next(some[0], vhost, each.exchange)}")
        if each.order == "known" and each.destinations:
            notice(
                "Note",
                f"virtual host {vhost!r}, exchange {each.exchange!r}: its order is not recorded",
                err=False,
            )
            echo(f"  Next: {_LEARN.format(vhost=shlex.quote(vhost), exchange=shlex.quote(each.exchange))}")
    echo(f"{counted(len(surveyed), 'hash exchange')}.")
