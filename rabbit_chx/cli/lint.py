"""``rabbit-chx lint``: what is wrong with a topology file, found without a broker."""

from __future__ import annotations

import click

from rabbit_chx.cli.changes import counted, print_findings
from rabbit_chx.cli.completion import releases
from rabbit_chx.cli.options import FILE, output_option
from rabbit_chx.cli.output import echo, print_json
from rabbit_chx.cli.verb import Exit, verb


@verb(
    examples=[
        "rabbit-chx lint topology.yaml",
        "rabbit-chx lint definitions.json --release 4.3",
    ],
    exit_codes={Exit.FINE: "no error; there may be warnings", Exit.FAILED: "there is an error"},
)
@click.argument("file", type=FILE)
@click.option(
    "-r",
    "--release",
    metavar="R",
    shell_complete=releases,
    help="Also report settings that this RabbitMQ release refuses or ignores.",
)
@output_option
def lint(*, file: str, release: str | None, output: str) -> int:
    """Check FILE without a broker: its syntax, and settings that a broker accepts but that lose messages or order."""
    from rabbit_chx.topology.checks.lint import lint as find
    from rabbit_chx.topology.file.load import load

    topology = load(file)
    findings = find(topology, release=release)
    if output == "json":
        for one in findings:
            print_json("finding", severity=one.severity, code=one.code, where=one.where, message=one.message)
    else:
        print_findings(findings)
        echo(
            f"{file}: {counted(len(topology.exchanges), 'exchange')}, {counted(len(topology.queues), 'queue')}, "
            f"{counted(len(topology.bindings), 'binding')}, {counted(len(topology.policies), 'policy', 'policies')}; "
            f"{counted(len(findings), 'finding')}"
        )
    return Exit.FAILED if any(finding.severity == "error" for finding in findings) else Exit.FINE
