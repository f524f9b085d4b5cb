"""What a verb is beside a click command: options in groups, exit codes, examples, each written once.

``--help`` shows them, docs/cli.md is made of them (``scripts/reference.py``), and a test parses every example.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["EXIT_CODES", "Exit", "Verb", "option", "verb", "write_exit_codes"]

_Command = TypeVar("_Command", bound="Callable[..., Any] | click.Command")
_OWN: Final = "Options"


class Exit(IntEnum):
    """The exit codes of every verb."""

    FINE = 0
    FAILED = 1
    DIFFERENT = 2
    PARTLY = 3
    USAGE = 64
    BUG = 70
    INTERRUPTED = 130


EXIT_CODES: Final = {
    Exit.FINE: "fine",
    Exit.FAILED: "failed",
    Exit.DIFFERENT: "differences were found, or changes are pending",
    Exit.PARTLY: "partly applied",
    Exit.USAGE: "wrong usage",
    Exit.BUG: "a mistake in rabbit-chx itself",
    Exit.INTERRUPTED: "interrupted",
}
"""What they mean wherever a verb says nothing more exact."""


class _Option(click.Option):
    """An option that stands under a title of its own."""

    def __init__(self, *declarations: Any, group: str, **attributes: Any) -> None:
        super().__init__(*declarations, **attributes)
        self.group = group


def option(*declarations: str, group: str, **attributes: Any) -> Callable[[_Command], _Command]:
    """``click.option``, for the help's section ``group``."""
    return click.option(*declarations, cls=_Option, group=group, **attributes)


class Verb(click.Command):
    """A command whose help reads like a small page of a manual."""

    def __init__(
        self, *arguments: Any, examples: Sequence[str], exit_codes: Mapping[Exit, str], **attributes: Any
    ) -> None:
        super().__init__(*arguments, **attributes)
        self.examples = examples
        self.exit_codes = exit_codes

    def groups(self, ctx: click.Context) -> dict[str, list[click.Option]]:
        """The options under their titles: first the verb's own, then those that it shares with others."""
        found: dict[str, list[click.Option]] = {_OWN: []}
        for each in self.get_params(ctx):
            if isinstance(each, click.Option):
                found.setdefault(getattr(each, "group", _OWN), []).append(each)
        return found

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A section for each group."""
        for title, options in self.groups(ctx).items():
            with formatter.section(title):
                formatter.write_dl(list(filter(None, (each.get_help_record(ctx) for each in options))))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What else there is to say, the exit codes that mean more than fine and failed, and the examples."""
        super().format_epilog(ctx, formatter)
        if self.exit_codes:
            write_exit_codes(formatter, self.exit_codes)
        with formatter.section("Examples"):
            for line in "\n".join(self.examples).splitlines():
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")


def verb(
    name: str | None = None,
    *,
    examples: Sequence[str],
    exit_codes: Mapping[Exit, str] | None = None,
    epilog: str | None = None,
) -> Callable[[Callable[..., Any]], Verb]:
    """Make a function a verb. A long example goes on behind a backslash and an indented line."""
    return click.command(name, cls=Verb, examples=examples, exit_codes=exit_codes or {}, epilog=epilog)


def write_exit_codes(formatter: click.HelpFormatter, codes: Mapping[Exit, str]) -> None:
    """A section that says what they mean."""
    with formatter.section("Exit codes"):
        formatter.write_dl([(str(int(code)), meaning) for code, meaning in codes.items()])
