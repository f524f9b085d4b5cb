"""``rabbit-chx check``: list the differences between a broker and a file."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rabbit_chx.base.text import counted
from rabbit_chx.cli.ask.broker_access import BrokerAccess, for_each_vhost, parts_behind, topology_options
from rabbit_chx.cli.ask.options import FILE, exchanges_option, output_option
from rabbit_chx.cli.changes import read_and_print, warn_of_unfinished
from rabbit_chx.cli.show.output import echo, notice, print_json, replace_file
from rabbit_chx.cli.show.plan_rows import condense
from rabbit_chx.cli.verb import Exit, option, verb
from rabbit_chx.errors import InvalidValue
from rabbit_chx.topology.checks.drift import SECOND_BINDING, Drift, drift, prometheus_metrics
from rabbit_chx.topology.model import Topology


@verb(
    examples=[
        "rabbit-chx check topology.yaml -U amqp://user@host/ --password-file pw",
        "rabbit-chx check topology.yaml --strict --output json",
        "rabbit-chx check topology.yaml --metrics /var/lib/metrics/rabbit_chx.prom",
    ],
    exit_codes={
        Exit.FINE: "no drift",
        Exit.FAILED: "the broker could not be read",
        Exit.DIFFERENT: "drift found",
    },
)
@topology_options
@exchanges_option(help="Check only this exchange and what it leads to.")
@option(
    "--strict",
    is_flag=True,
    help="Also list exchanges, queues and policies that the file does not name, and count second bindings without effect.",
)
@option(
    "--metrics",
    "metrics_file",
    type=FILE,
    metavar="FILE",
    help="Write metrics to FILE, for Prometheus's textfile collector.",
)
@option(
    "-v", "--verbose", is_flag=True, help="List every difference, and how the order of each ring is known."
)
@output_option
def check(
    *,
    topologies: tuple[Topology, ...],
    live: BrokerAccess,
    exchanges: tuple[str, ...],
    strict: bool,
    metrics_file: str | None,
    verbose: bool,
    output: str,
) -> int:
    """List every difference between a broker and FILE; change nothing."""

    def check_one(wanted: Topology) -> int:
        observed = read_and_print(live, wanted, verbose=verbose)
        warn_of_unfinished(live, wanted.vhost)
        drifts = drift(wanted, observed, strict=strict)
        if metrics_file is not None:
            text = prometheus_metrics(drifts, vhost=wanted.vhost, checked_at=time.time())
            replace_file(metrics_file, text, option="--metrics")
        _print(drifts, wanted.vhost, output, strict=strict, verbose=verbose)
        for what in observed.unseen:
            notice("Not seen", what)
        return Exit.DIFFERENT if _counted(drifts, strict=strict) else Exit.FINE

    if metrics_file is not None and len(topologies) > 1:
        raise InvalidValue("--metrics", metrics_file, "one virtual host", "--vhost selects one")
    return for_each_vhost(parts_behind(topologies, exchanges, without="strict"), check_one)


def _counted(drifts: Sequence[Drift], *, strict: bool) -> list[Drift]:
    """The differences that are not only warnings."""
    return [one for one in drifts if strict or one.kind != SECOND_BINDING]


def _print(drifts: Sequence[Drift], vhost: str, output: str, *, strict: bool, verbose: bool) -> None:
    if output == "json":
        for one in drifts:
            print_json("drift", kind=one.kind, where=one.where, message=one.message, misrouted=one.misrouted)
        return
    differences = _counted(drifts, strict=strict)
    warnings = [one for one in drifts if one not in differences]
    for label, some in (("Warning", warnings), ("Drift", differences)):
        lines = list(map(str, some))
        for line in lines if verbose else condense(lines):
            notice(label, line, err=False)
    count = counted(len(differences), "difference") if differences else "0 drift"
    echo(f"Virtual host {vhost!r}: {count}.")
