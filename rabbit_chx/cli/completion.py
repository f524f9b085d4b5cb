"""``rabbit-chx completion``, and the completion of releases, exchanges and queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from rabbit_chx.cli.show.output import echo
from rabbit_chx.cli.verb import verb
from rabbit_chx.errors import RabbitChxError
from rabbit_chx.mirror.releases import SERIES

if TYPE_CHECKING:
    from rabbit_chx.topology.model import Topology

_VARIABLE: Final = "_RABBIT_CHX_COMPLETE"


@verb(
    examples=[
        "rabbit-chx completion bash \\\n    > ~/.local/share/bash-completion/completions/rabbit-chx",
        "rabbit-chx completion zsh > ~/.zfunc/_rabbit-chx",
        "rabbit-chx completion fish > ~/.config/fish/completions/rabbit-chx.fish",
        "source <(rabbit-chx completion bash)",
    ],
    epilog="""
    The folder must exist; new shells then complete commands. For zsh, ~/.zshrc needs `fpath+=(~/.zfunc)`
    before `compinit`. The last example enables completion in the current bash.
    """,
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(*, shell: str) -> None:
    """Print the script that completes verbs, options, files, releases and names of a topology file in SHELL."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    cli = click.get_current_context().find_root().command
    echo(found(cli, {}, "rabbit-chx", _VARIABLE).source())


def releases(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """The mirrored series."""
    return [each for each in SERIES if each.startswith(incomplete)]


def exchanges(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Those of the topology file on the command line."""
    return [each.name for each in _topology(ctx).exchanges if each.name.startswith(incomplete)]


def queues(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Those of the topology file on the command line."""
    return [each.name for each in _topology(ctx).queues if each.name.startswith(incomplete)]


def _topology(ctx: click.Context) -> Topology:
    """The topology file, empty if it cannot be read: the command itself reports why."""
    from rabbit_chx.topology.file.load import load
    from rabbit_chx.topology.model import Topology

    # While an option has no value yet, click leaves the arguments before it unparsed.
    file = ctx.params.get("file") or next(iter(ctx.args), None)
    try:
        return load(file) if file else Topology()
    except RabbitChxError:
        return Topology()
