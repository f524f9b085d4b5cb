"""``rabbit-chx lint``: check a topology file without a broker."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from rabbit_chx.base.text import counted
from rabbit_chx.cli.ask.broker_access import load_topologies, vhosts_option
from rabbit_chx.cli.ask.options import FILE, other_release_option, output_option
from rabbit_chx.cli.changes import print_findings
from rabbit_chx.cli.show.output import echo, notice, print_json
from rabbit_chx.cli.verb import Exit, verb
from rabbit_chx.topology.checks.lint import lint as find
from rabbit_chx.topology.file.problems import InvalidTopology
from rabbit_chx.topology.model import Topology


@verb(
    examples=[
        "rabbit-chx lint topology.yaml",
        "rabbit-chx lint definitions.json --release 4.3",
    ],
    exit_codes={
        Exit.FINE: "no errors; there may be warnings",
        Exit.FAILED: "errors found, or FILE is invalid",
    },
)
@click.argument("file", type=FILE)
@vhosts_option
@other_release_option(help="Also report settings that this RabbitMQ release refuses or ignores.")
@output_option
def lint(*, file: str, vhosts: tuple[str, ...], release: str | None, output: str) -> int:
    """Check FILE without a broker: its syntax, and settings that a broker accepts but that lose messages or order."""
    try:
        topologies = load_topologies(file, vhosts)
    except InvalidTopology as errors:
        if not Path(file).is_file():
            raise
        notice("Error", str(errors))
        return Exit.FAILED
    has_errors = False
    for topology in topologies:
        findings = find(topology, release=release)
        has_errors |= any(finding.severity == "error" for finding in findings)
        if output == "json":
            for one in findings:
                where = one.where if len(topologies) == 1 else f"virtual host {topology.vhost!r}, {one.where}"
                print_json("finding", **asdict(one) | {"where": where})
        else:
            print_findings(findings)
            name = file if len(topologies) == 1 else f"{file}, virtual host {topology.vhost!r}"
            echo(f"{name}: {_summary(topology)}; {counted(len(findings), 'finding')}")
    return Exit.FAILED if has_errors else Exit.FINE


def _summary(topology: Topology) -> str:
    counts = (
        counted(len(topology.exchanges), "exchange"),
        counted(len(topology.queues), "queue"),
        counted(len(topology.bindings), "binding"),
        counted(len(topology.policies), "policy", "policies"),
    )
    return ", ".join(counts)
