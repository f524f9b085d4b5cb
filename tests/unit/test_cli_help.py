"""The help of every verb: it fits a terminal, its examples parse, and docs/cli.md is made of it; and options that verbs share."""

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


# --- an option means the same in every verb that has it ------------------------------------------------------

OPTIONS = sorted(
    {name for verb in VERBS.values() for each in verb.params for name in each.opts if name[:2] == "--"}
)
DIFFERENT = {
    "--format": "the formats of rows (publish) and of topologies (export, import)",
    "--to": "a number of queues (scale) and an exchange (replay)",
}
"""Options that take other values in some verbs, and why."""


def takes(option: click.Parameter) -> tuple[object, ...]:
    """What the value of an option looks like."""
    assert isinstance(option, click.Option)
    kind = option.type
    values = tuple(kind.choices) if isinstance(kind, click.Choice) else type(kind).__name__
    return option.is_flag, option.metavar, values


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_has_the_same_names_and_takes_the_same_value_in_every_verb(name: str) -> None:
    found = [each for command in VERBS.values() for each in command.params if name in each.opts]
    assert len({tuple(each.opts) for each in found}) == 1, found
    assert len({takes(each) for each in found}) == 1 or name in DIFFERENT, found


def test_a_short_name_is_that_of_one_option() -> None:
    long: dict[str, set[str]] = {}
    for command in VERBS.values():
        for each in command.params:
            for short in each.opts:
                if len(short) == 2:
                    long.setdefault(short, set()).add(each.opts[-1])
    assert [short for short, names in long.items() if len(names) > 1] == []


@pytest.mark.parametrize("command", ["parity", "group workers", "replay parked --yes"])
def test_a_virtual_host_is_chosen_without_a_file(command: str, run) -> None:
    url = "amqp://127.0.0.1:1/other"
    assert "virtual host 'other'" in run(*command.split(), "-U", url).err
    assert "virtual host 'shop'" in run(*command.split(), "-U", url, "--vhost", "shop").err


def test_the_release_that_is_assumed_is_named_where_it_matters(run, write) -> None:
    acme = ("--hash-header", "tenant", "--header", "tenant=acme")
    queues = tuple(word for number in range(100) for word in ("-q", f"q{number}"))
    found = run("route", *acme, *queues)
    assert found.err.startswith("Note: RabbitMQ 4.3 is assumed. Releases up to 3.12 ")
    older, newer = (run("route", *acme, *queues, "--release", each) for each in ("3.12", "4.3"))
    assert (older.err, newer.err) == ("", "")
    assert found.out == newer.out != older.out
    file = write(
        "schema: 1\nexchanges: {x: {type: x-consistent-hash, hash-header: tenant, queues: {a: 1}}}\nqueues: {a: {}}\n"
    )
    assert "RabbitMQ 4.3 is assumed" in run("ring", "-f", file).err
    assert run("route", "key", *queues).err == ""


def test_a_topology_file_among_the_keys_is_pointed_out(run, tmp_path) -> None:
    file = tmp_path / "topology.yaml"
    file.touch()
    found = run("route", "customer-42", str(file), "-q", "a", "-q", "b")
    assert found.err.endswith("is treated as a key; to pass a topology file, use --file\n")


def test_a_key_that_cannot_be_looked_up_as_a_file_is_a_key(run) -> None:
    assert "at most 255 bytes" in run.refused("route", "x" * 256 + ".json", "-q", "a")
    assert run("route", "customer-42", "topology.yaml", "-q", "a", "-q", "b").err == ""
