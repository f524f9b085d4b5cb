"""The help of every verb: it fits a terminal, its examples are commands that parse, and docs/cli.md is made of it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import reference

from rabbit_chx.cli.verb import Exit, option, verb
from tests.verbs import commands

ROOT = Path(__file__).parents[2]
VERBS = commands()
EXAMPLES = [(name, example) for name, each in VERBS.items() for example in each.examples]


def words_of(example: str) -> list[str]:
    """What an example hands to the program: behind pipes and variables, before whatever the shell does with the rest."""
    found = re.search(r"rabbit-chx ([^|>)]*)", example.replace("\\\n", " "))
    return shlex.split(found[1])


@pytest.mark.parametrize("columns", ["80", "50", "160"])
@pytest.mark.parametrize("name", ["", *VERBS])
def test_help_fits_the_terminal(run, monkeypatch, name, columns) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    text = run(*filter(None, [name]), "--help").out
    before, _, _ = text.partition("\nExamples:\n")  # no command is broken for a narrow terminal
    assert max(map(len, before.splitlines())) <= int(columns)
    assert max(map(len, text.splitlines())) <= max(80, int(columns))


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_examples_and_says_what_it_does(name) -> None:
    assert len(VERBS[name].examples) >= 2
    assert VERBS[name].help
    assert VERBS[name].short_help


@pytest.mark.parametrize(("name", "example"), EXAMPLES)
def test_every_example_parses(name, example) -> None:
    verb, *words = words_of(example)
    assert verb == name
    VERBS[verb].make_context(verb, words)


def test_help_has_groups_exit_codes_and_examples_in_this_order() -> None:
    @verb("greet", examples=["rabbit-chx greet \\\n    --loud"], exit_codes={Exit.PARTLY: "half of them"})
    @option("--loud", group="The voice", is_flag=True, help="Shout.")
    @click.option("--name", help="Whom.")
    def greet(**_: object) -> None:
        """Greet."""

    text = greet.get_help(click.Context(greet, info_name="greet"))
    titles = ["Options:", "--name", "--help", "The voice:", "--loud", "Exit codes:", "3  half", "Examples:"]
    assert [text.index(title) for title in titles] == sorted(text.index(title) for title in titles)
    assert text.endswith("Examples:\n  rabbit-chx greet \\\n      --loud")


# --- docs/cli.md --------------------------------------------------------------------------------------------


def test_the_reference_is_what_its_script_makes() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    assert page == reference.page(), "docs/cli.md is out of date: run `make reference`"


ALSO = re.compile(r"^\* \[.*?\]\(#.*?\): (.*)", re.MULTILINE)
SHARED = (ROOT / "docs" / "cli.md").read_text().partition("\n## Shared options\n")[2]


def options_in(section: str) -> set[str]:
    """The options that the tables of a section explain."""
    first_cells = "".join(re.findall(r"^\| (`-.*?) \|", section, re.MULTILINE))
    return set(re.findall(r"`(--?[a-z][\w-]*)", first_cells, re.IGNORECASE))


def test_a_shared_option_is_explained_once() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    rows = re.findall(r"^\| (`-.*?) \|$", page, re.MULTILINE)
    assert [row for row in set(rows) if rows.count(row) >= 3 and "--vhost" not in row] == []
    named = set(re.findall(r"`(--?\w[\w-]*)`", "".join(ALSO.findall(page))))
    assert named == options_in(SHARED)
