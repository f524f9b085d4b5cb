"""``rabbit-chx completion``: what a shell completes, by click's own machinery, and the words that only this toolkit knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from rabbit_chx.cli.output import echo
from rabbit_chx.cli.verb import verb
from rabbit_chx.errors import RabbitChxError

if TYPE_CHECKING:
    from rabbit_chx.topology.model import Topology

__all__ = ["completion", "exchanges", "queues", "releases"]

_VARIABLE: Final = "_RABBIT_CHX_COMPLETE"


@verb(
    examples=[
        "rabbit-chx completion bash \\\n    > ~/.local/share/bash-completion/completions/rabbit-chx",
        "rabbit-chx completion zsh > ~/.zfunc/_rabbit-chx",
        "rabbit-chx completion fish > ~/.config/fish/completions/rabbit-chx.fish",
        "source <(rabbit-chx completion bash)",
    ],
    epilog="""
    The folder has to be there; the next shell completes then. For zsh, `fpath+=(~/.zfunc)` has to stand in ~/.zshrc
    before `compinit`. The last example is for the bash that runs now.
    """,
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(*, shell: str) -> None:
    """Print the script that makes SHELL complete verbs, options, files, releases, and what stands in a topology file."""
    from click.shell_completion import get_completion_class

    from rabbit_chx.cli import cli

    found = get_completion_class(shell)
    assert found is not None
    echo(found(cli, {}, "rabbit-chx", _VARIABLE).source())


def releases(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """The series that are mirrored."""
    from rabbit_chx.releases import SERIES

    return [each for each in SERIES if each.startswith(incomplete)]


def exchanges(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Those of the topology file that was named before."""
    topology = _topology(ctx)
    found = topology.exchanges if topology else ()
    return [each.name for each in found if each.name.startswith(incomplete)]


def queues(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Those of the topology file that was named before."""
    topology = _topology(ctx)
    found = topology.queues if topology else ()
    return [each.name for each in found if each.name.startswith(incomplete)]


def _topology(ctx: click.Context) -> Topology | None:
    """A file that cannot be read completes nothing: what is wrong with it is told when the command runs."""
    from rabbit_chx.topology.file.load import load

    # Where the option still waits for its value, click leaves the arguments before it unparsed.
    file = ctx.params.get("file") or next(iter(ctx.args), None)
    try:
        return load(file) if file else None
    except RabbitChxError:
        return None
