"""The command line: one file for each verb, imported when the verb is called."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from io import StringIO, TextIOWrapper
from traceback import format_exc
from typing import Final

import click

from rabbit_chx import __version__
from rabbit_chx.base.interruption import Terminated, terminated_as_interrupted
from rabbit_chx.base.text import without_secrets
from rabbit_chx.cli.show.output import echo, notice
from rabbit_chx.cli.verb import EXIT_CODES, Exit, write_exit_codes
from rabbit_chx.errors import InvalidValue, RabbitChxError

GROUPS: Final = {
    "Predict": {
        "route": "Show which queue each key lands on.",
        "ring": "Show the buckets, the exact share of each queue, and the ring after a restart.",
        "simulate": "Show how a sample of keys spreads over the queues: skew, chi-squared, hot keys.",
        "report": "Write an HTML page about an exchange, with pictures.",
    },
    "Topology": {
        "list": "List the hash exchanges of a broker, and what is wrong with them.",
        "lint": "Check a topology file without a broker.",
        "plan": "Show the steps from a broker to a topology file, and the keys that each moves.",
        "apply": "Apply a topology file to a broker.",
        "check": "List the differences between a broker and a topology file.",
        "export": "Write a topology file from a broker, or from a definitions.json.",
    },
    "Change under load": {
        "scale": "Change the number of queues under load, without breaking the order of any key.",
        "rebalance": "Move the fewest slots for an even load, without breaking the order of any key.",
    },
    "Run": {
        "publish": "Publish the rows of a file, with confirms.",
        "group": "Show the members of a group of consumers and the queues that each works on.",
        "watch": "Show an exchange live: shares, rates, consumers, drift.",
        "replay": "Publish parked or dead-lettered messages again, to where they came from.",
    },
    "Set up": {
        "doctor": "Check the installation and the broker, and suggest fixes.",
        "demo": "Compare predictions with a throw-away broker.",
        "parity": "Compare predictions with your broker, or with a throw-away one.",
        "completion": "Print the completion script for bash, zsh or fish.",
    },
}
"""The verbs by what they are for, with their summaries."""
_VERBS: Final = {verb: text for verbs in GROUPS.values() for verb, text in verbs.items()}
_WIDEST: Final = max(map(len, _VERBS))

# Verbs whose file and function have other names.
_HOMES: Final = {"list": ("listing", "list_")}


class _Verbs(click.Group):
    """Imports only the verb that is called, so that start-up stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_VERBS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            near = get_close_matches(args[0], _VERBS, n=1)
            raise click.UsageError(
                error.message + "".join(f" Did you mean {one}?" for one in near), ctx
            ) from None

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _VERBS:
            return None
        file, name = _HOMES.get(cmd_name, (cmd_name, cmd_name))
        command = getattr(import_module(f"{__name__}.{file}"), name)
        assert isinstance(command, click.Command)
        command.short_help = _VERBS[cmd_name]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        # click would import every verb for its short help. Equal widths align the sections.
        for title, verbs in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(verb.ljust(_WIDEST), text) for verb, text in verbs.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_exit_codes(formatter, EXIT_CODES)
        super().format_epilog(ctx, formatter)


@click.group(
    cls=_Verbs,
    subcommand_metavar="VERB [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="`rabbit-chx VERB --help` shows examples. NO_COLOR disables colours.",
)
@click.version_option(__version__, prog_name="rabbit-chx")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(*, debug: bool) -> None:
    """Work with RabbitMQ's consistent-hash exchange: predict, plan, change, publish, consume and watch."""
    # _exit_code looks for --debug, because it sees all errors.


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, TextIOWrapper):  # invalid UTF-8 is shown as stderr shows it
        sys.stdout.reconfigure(errors="backslashreplace")
    with terminated_as_interrupted(), _quiet_finalizers():
        code = _exit_code(arguments)
    sys.exit(code)


@contextmanager
def _quiet_finalizers() -> Iterator[None]:
    """Do not show errors of finalizers whose object is incomplete.

    A signal may end a constructor of the standard library. Python 3.13 reports that what it left cannot be closed.
    """
    before = sys.unraisablehook

    def hook(found: sys.UnraisableHookArgs) -> None:
        if not isinstance(found.exc_value, (AttributeError, ValueError)):
            before(found)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def _exit_code(arguments: list[str]) -> int:
    try:
        code = cli.main(arguments, prog_name="rabbit-chx", standalone_mode=False)
    except click.ClickException as error:
        shown = StringIO()
        error.show(shown)
        usage, _, complaint = shown.getvalue().partition("Error: ")
        echo(usage, err=True, nl=False)
        if complaint:  # none without a verb: the help is shown instead
            notice("Error", without_secrets(complaint.rstrip()))
        return Exit.USAGE if isinstance(error, click.UsageError) else Exit.FAILED
    except (click.Abort, KeyboardInterrupt) as error:
        echo("Interrupted.", err=True)
        # click raises its Abort while it handles the interrupt.
        by_sigterm = any(isinstance(each, Terminated) for each in (error, error.__context__))
        return Exit.TERMINATED if by_sigterm else Exit.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - a traceback is only shown with --debug
        if "--debug" in arguments:
            echo(without_secrets(format_exc()), err=True)
        return _fault(error)
    return code if isinstance(code, int) else 0


def _fault(error: Exception) -> Exit:
    """Report an error and return its exit code."""
    if "pika" in sys.modules and (reason := _why_amqp(error)):
        notice("Error", reason)
        return Exit.FAILED
    text = without_secrets(str(error))
    if isinstance(error, (RabbitChxError, OSError)):
        notice("Error", text)
        return Exit.USAGE if isinstance(error, InvalidValue) else Exit.FAILED
    notice(
        "Error",
        f"{type(error).__name__}: {text}. This is a bug in rabbit-chx: please report it with the output of "
        "`rabbit-chx --debug ...`.",
    )
    return Exit.BUG


def _why_amqp(error: Exception) -> str:
    """The reason of an error of pika that no verb handles, such as a limit of the broker."""
    from pika.exceptions import AMQPError

    from rabbit_chx.broker.reasons import why_down

    return str(why_down(error, "the given URL")) if isinstance(error, AMQPError) else ""
