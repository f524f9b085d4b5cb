"""Generate docs/cli.md, the command-line reference, from the commands themselves.

    make reference

A test checks that the page is up to date.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from rabbit_chx.cli import GROUPS, cli
from rabbit_chx.cli.verb import EXIT_CODES, Exit, Verb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "cli.md"

HEAD: Final = """\
# The command line

The verbs of `rabbit-chx`, with their arguments, options, exit codes and examples. `rabbit-chx VERB --help` prints the same.
Options that mean the same in several verbs are explained once, in [shared options](#shared-options).

<!-- Generated from the commands by scripts/reference.py: run `make reference` to update it. -->
"""
SHARED_BY: Final = 3
"""The number of verbs from which on an option is explained with the shared options."""
OTHERS: Final = "Other shared options"
GENERAL: Final = """
`--debug` before the verb shows the traceback of an error, `--version` the version, and `-h` or `--help` the help; errors, notes and
progress go to standard error. `NO_COLOR` turns colours off, and a pipe gets none. With `--output json` a verb prints lines for programs:
[output.md](output.md) lists them. `rabbit-chx completion` prints a script with which a shell completes verbs, options and names.

| exit code | means |
|---|---|
"""


def main() -> None:
    """Write it."""
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """The whole page."""
    context = click.Context(cli, info_name="rabbit-chx")
    verbs = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    index = "".join(
        f"| **{title}** | |\n" + "".join(f"| [`{name}`](#{name}) | {text} |\n" for name, text in each.items())
        for title, each in GROUPS.items()
    )
    codes = "".join(f"| {int(code)} | {meaning} |\n" for code, meaning in EXIT_CODES.items())
    known = {name: each for name, each in verbs.items() if isinstance(each, Verb)}
    shared = shared_options(known.values())
    sections = [section(name, each, context, shared) for name, each in known.items()]
    head = f"{HEAD}\n| verb | does |\n|---|---|\n{index}{GENERAL}{codes}\n"
    return head + "\n".join([*sections, about_shared(shared)])


def shared_options(verbs: Iterable[Verb]) -> dict[str, tuple[str, str]]:
    """Return the options that several verbs have: for the names of each the title of its table, and its row.

    An option with two meanings, such as ``--vhost``, is explained in each verb.
    """
    titles: dict[tuple[str, str], str] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for verb in verbs:
        for title, options in own_groups(verb).items():
            keys = [(names(each), row(each)) for each in options]
            counts.update(keys)
            titles = dict.fromkeys(keys, OTHERS if title in {"Options", "Changes"} else title) | titles
    often = [key for key, count in counts.items() if count >= SHARED_BY]
    meanings = Counter(name for name, _ in often)
    return {name: (titles[name, text], text) for name, text in often if meanings[name] == 1}


def about_shared(shared: Mapping[str, tuple[str, str]]) -> str:
    """Return the section about shared options."""
    tables: dict[str, str] = {title: "" for title, _ in shared.values() if title != OTHERS} | {OTHERS: ""}
    for title, text in shared.values():
        tables[title] += text
    parts = [f"### {title}\n\n| option | |\n|---|---|\n{rows}" for title, rows in tables.items()]
    return "\n".join(["## Shared options\n", *parts])


def own_groups(verb: Verb) -> dict[str, list[click.Option]]:
    """Return the options of a verb by group, without --help."""
    groups = verb.groups(click.Context(verb))
    return {title: [each for each in options if each in verb.params] for title, options in groups.items()}


def section(name: str, verb: Verb, above: click.Context, shared: Mapping[str, tuple[str, str]]) -> str:
    """Return the section about one verb."""
    context = click.Context(verb, info_name=name, parent=above)
    usage = " ".join([context.command_path, *verb.collect_usage_pieces(context)])
    parts = [f"## {name}\n\n{prose(verb.help)}", f"```text\n{usage}\n```\n"]
    if (PAGE.parent / "pictures" / f"{name}.svg").exists():
        parts += [f"![{name} at a terminal](pictures/{name}.svg)\n"]
    elsewhere: dict[str, list[click.Option]] = {}
    for title, options in own_groups(verb).items():
        own = [each for each in options if shared.get(names(each), ("", ""))[1] != row(each)]
        parts += [table(title, own)] if own else []
        for each in options:
            if each not in own:
                elsewhere.setdefault(shared[names(each)][0], []).append(each)
    parts += [also(elsewhere)] if elsewhere else []
    parts += [prose(verb.epilog)] if verb.epilog else []
    parts += [exit_codes(verb.exit_codes)] if verb.exit_codes else []
    parts += ["```sh\n{}\n```\n".format("\n".join(verb.examples))]
    return "\n".join(parts)


def prose(text: str | None) -> str:
    """A text of the help."""
    return coded(inspect.cleandoc(text or "")) + "\n"


def table(title: str, options: Iterable[click.Option]) -> str:
    """Return the table of one group of options."""
    return f"| {title.lower()} | |\n|---|---|\n{''.join(map(row, options))}"


def row(option: click.Option) -> str:
    """Return the row of an option."""
    return f"| {names(option)} | {' '.join(facts(option))} |\n"


def also(shared: Mapping[str, Iterable[click.Option]]) -> str:
    """Name the shared options of a verb, with links to their tables."""
    lines = (
        f"* [{title}](#{title.lower().replace(' ', '-')}): {', '.join(f'`{name}`' for each in options for name in each.opts)}\n"
        for title, options in sorted(shared.items(), key=lambda item: item[0] == OTHERS)
    )
    return "".join(["Shared options:\n\n", *lines])


def names(option: click.Option) -> str:
    """Return the names of an option; its long name is followed by its value."""
    takes = "" if option.is_flag else f" {option.metavar or option.name.upper()}"
    if isinstance(option.type, click.Choice):
        takes = ""
    *short, long = option.opts
    return ", ".join(f"`{escaped(each)}`" for each in (*short, long + takes))


def facts(option: click.Option) -> Iterator[str]:
    """Yield what an option does, and the facts about its value."""
    about = option.to_info_dict()
    yield coded(escaped(option.help or ""))
    yield from limits(about["type"])
    if option.required:
        yield "Required."
    if option.show_default:
        yield f"Default: `{option.default}`."
    if option.envvar:
        variables = [option.envvar] if isinstance(option.envvar, str) else option.envvar
        yield f"Environment: {', '.join(f'`{each}`' for each in variables)}."


def limits(kind: Mapping[str, object]) -> Iterator[str]:
    """Yield the values that an option accepts."""
    if choices := kind.get("choices"):
        assert isinstance(choices, (list, tuple))
        yield f"One of {', '.join(f'`{each}`' for each in choices)}."
    least, most = kind.get("min"), kind.get("max")
    if least is not None and most is not None:
        yield f"From {least} to {most}."
    elif least is not None:
        yield f"More than {least}." if kind.get("min_open") else f"At least {least}."


def exit_codes(codes: Mapping[Exit, str]) -> str:
    """Return the table of exit codes that have a special meaning for a verb."""
    return "| exit code | means |\n|---|---|\n" + "".join(
        f"| {int(code)} | {coded(meaning)} |\n" for code, meaning in codes.items()
    )


def coded(text: str) -> str:
    """Format the options in a text as code."""
    return re.sub(r"(?<![\w`-])--?[a-z][\w-]*", r"`\g<0>`", text)


def escaped(text: str) -> str:
    """Escape the characters that would end a table cell."""
    return text.replace("|", "\\|")


if __name__ == "__main__":
    main()
