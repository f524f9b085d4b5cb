"""What verbs print, made safe for a terminal: sentences and labelled notices for people, one JSON object a line for programs, and files.

docs/output.md lists every JSON line of every verb; a test compares both. Removing a key or changing its meaning raises
SCHEMA; adding one does not.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import stat
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import click

from rabbit_chx.base.advice import in_options
from rabbit_chx.base.text import UNPRINTABLE, printable
from rabbit_chx.errors import InvalidValue

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA: Final = 1

_CHANGED: Final = "rabbit_chx.changed"
_ENDS_UNHEARD: Final = "rabbit_chx.ends_unheard"

_COLOURS: Final = {
    "Error": "red",
    "Refused": "red",
    "Drift": "red",
    "Warning": "yellow",
    "Not seen": "yellow",
    "Not verified": "yellow",
    "Note": "cyan",
}


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text, with escapes in place of characters that would control the terminal."""
    shown = printable(in_options(text), keep="\n\t")
    write(_wrapped(shown) if err else shown, err=err, nl=nl)


def notice(label: str, text: str, *, err: bool = True) -> None:
    """Print a line that begins with a coloured label, on standard error by default."""
    colour = True if os.environ.get("FORCE_COLOR") else None  # as rich does
    shown = printable(in_options(text), keep="\n\t")
    shown = _wrapped(shown, after=f"{label}: ") if err else shown
    write(f"{coloured(label + ':', _COLOURS[label])} {shown}", err=err, color=colour)


def _wrapped(text: str, *, after: str = "") -> str:
    """Text for standard error: at a terminal, a long line is wrapped between words, but not inside a command in backticks.

    ``after`` is printed before the text. Indented text and several lines stay as they are.
    """
    if not (sys.stderr and sys.stderr.isatty()) or "\n" in text or text.startswith(" "):
        return text
    whole = re.sub(r"`[^`]*`", lambda found: found[0].replace(" ", "\0"), text)  # `printable` leaves no NUL
    filled = textwrap.fill(
        after + whole,
        shutil.get_terminal_size().columns,  # as click wraps help
        break_long_words=False,
        break_on_hyphens=False,
        expand_tabs=False,
        replace_whitespace=False,
    )
    return filled.replace("\0", " ")[len(after) :]


def coloured(text: str, colour: str) -> str:
    """The text in a colour, which click removes in a pipe; click alone would ignore NO_COLOR."""
    return text if os.environ.get("NO_COLOR") else click.style(text, fg=colour)


def json_line(what: str, /, **fields: Any) -> str:
    """A JSON object on one line, without the newline."""
    line = json.dumps({"schema": SCHEMA, "type": what} | fields, ensure_ascii=False)
    return UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


def print_json(what: str, /, **fields: Any) -> None:
    """Print one JSON object on a line of standard output."""
    write(in_options(json_line(what, **fields)))


def tell(output: str, text: str, what: str, /, **fields: Any) -> None:
    """Print a result: a JSON object with these fields, or the text."""
    if output == "json":
        print_json(what, **fields)
    else:
        echo(text)


def write(text: str | bytes, *, err: bool = False, nl: bool = True, color: bool | None = None) -> None:
    """Print text unchanged, and carry on if its reader has left (``| head``), unless `end_when_unheard` was called.

    A change must not stop halfway, and the exit code tells the result to others.
    """
    try:
        click.echo(text, err=err, nl=nl, color=color)
    except BrokenPipeError:
        # Discard all further output, so that Python does not report a failed flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), (sys.stderr if err else sys.stdout).fileno())
        context = click.get_current_context(silent=True)
        if context and _ENDS_UNHEARD in context.meta and not err:
            raise click.exceptions.Exit(0) from None


def end_when_unheard() -> None:
    """From now on, end the command when the reader of its output has left, since it only prints, for long or for ever."""
    click.get_current_context().meta[_ENDS_UNHEARD] = True


def note_change() -> None:
    """Remember that the command has changed the broker."""
    click.get_current_context().meta[_CHANGED] = True


def has_changed() -> bool:
    """Whether the command has changed the broker."""
    return _CHANGED in click.get_current_context().meta


def nothing_changed() -> str:
    """The sentence that the broker is as it was, or as the command has changed it before."""
    return "Nothing else was changed." if has_changed() else "Nothing was changed."


class Check(NamedTuple):
    """A row of ``doctor``: what was checked, the result, and how to fix it."""

    name: str
    state: str
    """``ok``, ``missing`` (needed only for some features) or ``failed``."""
    found: str
    hint: str = ""
    details: Mapping[str, object] = {}
    """More fields of the JSON object."""


def log_to_stderr() -> None:
    """Show the package's warnings on standard error until the command ends: lost connections, memory and disk alarms.

    A handler that stayed would write each line twice in a program that runs a second command, and fail once the
    standard error of the first is closed.
    """
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_PrintableFormatter())
    log = logging.getLogger("rabbit_chx")
    log.addHandler(handler)
    click.get_current_context().call_on_close(lambda: log.removeHandler(handler))


class _PrintableFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(in_options(super().format(record)), keep="\n\t")


@contextmanager
def progress(
    title: str, total: int | None, *, unit: Literal["items", "bytes"] = "items"
) -> Iterator[Callable[[int], object]]:
    """Show on a terminal how many items or bytes are done; yield the function that adds to them."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich import progress as bars
    from rich.table import Column

    whole = Column(no_wrap=True)
    counts: tuple[bars.ProgressColumn, ...] = (bars.MofNCompleteColumn(table_column=whole),)
    if unit == "bytes":
        counts = (bars.DownloadColumn(table_column=whole), bars.TransferSpeedColumn(table_column=whole))
    name = bars.TextColumn("{task.description}", markup=False)
    columns = (name, bars.BarColumn(), *counts, bars.TimeRemainingColumn())
    with bars.Progress(*columns, console=_console(), transient=True) as shown:
        task = shown.add_task(printable(title), total=total)
        yield lambda count: shown.advance(task, count)


def waiting(title: str) -> AbstractContextManager[object]:
    """Show that work of unknown duration is in progress."""
    return _console().status(printable(title)) if sys.stderr.isatty() else nullcontext()


def _console() -> Console:
    """A console on standard error that leaves file names unchanged."""
    from rich.console import Console

    return Console(stderr=True, markup=False, emoji=False)


_READABLE_BY_ALL: Final = 0o644


def replace_file(path: str, text: str, *, option: str) -> None:
    """Replace the text of a file at once, because another program may read it at any time.

    A new one can be read by other users.

    A symbolic link stays, and what it points to is replaced. A pipe or a device is written to.
    """
    try:
        given = Path(path)
        if given.exists() and not given.is_file():
            given.write_text(text, encoding="utf-8")
        else:
            _replace(Path(os.path.realpath(given)), text)
    except OSError as error:
        hint = f"The system says: {error.strerror}"
        raise InvalidValue(option, path, "a file that can be written", hint) from None


def _replace(target: Path, text: str) -> None:
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else _READABLE_BY_ALL
    descriptor, new = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(new).chmod(mode)
        Path(new).replace(target)
    except BaseException:
        with suppress(OSError):
            Path(new).unlink()
        raise
