"""Verbs: click commands with groups of options, exit codes and examples.

``--help`` shows them, and ``scripts/reference.py`` generates docs/cli.md from them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from math import isnan
from typing import Any, Final, TypeVar

import click

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
    TERMINATED = 143


EXIT_CODES: Final = {
    Exit.FINE: "fine",
    Exit.FAILED: "failed",
    Exit.DIFFERENT: "differences were found, or changes are pending",
    Exit.PARTLY: "partly applied",
    Exit.USAGE: "wrong usage",
    Exit.BUG: "a bug in rabbit-chx",
    Exit.INTERRUPTED: "interrupted by Ctrl-C",
    Exit.TERMINATED: "ended by SIGTERM, which does the same as Ctrl-C",
}
"""The meaning of each code; a verb may be more specific."""


class FloatRange(click.FloatRange):
    """A range of numbers without NaN, which click finds in every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number, if it is in the range."""
        if isnan(number := super().convert(value, param, ctx)):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


class _Option(click.Option):
    """An option with a group. The help of an option with several values ends with "May be repeated."."""

    def __init__(self, *declarations: Any, group: str, **attributes: Any) -> None:
        super().__init__(*declarations, **attributes)
        if self.multiple:
            self.help = f"{self.help} May be repeated."
        self.group = group


def option(*declarations: str, group: str = _OWN, **attributes: Any) -> Callable[[_Command], _Command]:
    """``click.option`` in the group ``group`` of the help."""
    return click.option(*declarations, cls=_Option, group=group, **attributes)


def bundle(
    *options: Callable[[Any], Any], gather: Callable[[dict[str, Any]], dict[str, Any]] = dict
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """One decorator for several options; ``gather`` turns their values into what the command gets."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def made(**values: Any) -> Any:
            return command(**gather(values))

        for each in reversed(options):
            made = each(made)
        return made

    return decorate


class Verb(click.Command):
    """A command with groups of options, exit codes and examples in its help."""

    def __init__(
        self, *arguments: Any, examples: Sequence[str], exit_codes: Mapping[Exit, str], **attributes: Any
    ) -> None:
        super().__init__(*arguments, **attributes)
        self.examples = examples
        self.exit_codes = exit_codes

    def groups(self, ctx: click.Context) -> dict[str, list[click.Option]]:
        """The options by group: first the verb's own, then the shared groups."""
        found: dict[str, list[click.Option]] = {_OWN: []}
        for each in self.get_params(ctx):
            if isinstance(each, click.Option):
                found.setdefault(getattr(each, "group", _OWN), []).append(each)  # click's own has no group
        return found

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A section for each group."""
        for title, options in self.groups(ctx).items():
            with formatter.section(title):
                formatter.write_dl(list(filter(None, (each.get_help_record(ctx) for each in options))))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The epilog, the exit codes and the examples."""
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
    """Turn a function into a verb. A long example continues after a backslash, on an indented line."""
    return click.command(name, cls=Verb, examples=examples, exit_codes=exit_codes or {}, epilog=epilog)


def write_exit_codes(formatter: click.HelpFormatter, codes: Mapping[Exit, str]) -> None:
    """Write the section about exit codes."""
    with formatter.section("Exit codes"):
        formatter.write_dl([(str(int(code)), meaning) for code, meaning in codes.items()])
