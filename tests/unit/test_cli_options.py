"""An option means the same in every verb that has it, and every verb that takes a file takes it in the same way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest

from tests.verbs import EVENTS, ORDERS, commands

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.unit.conftest import Runner

VERBS = commands()
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
def test_an_option_takes_the_same_value_in_every_verb(name: str) -> None:
    found = {
        takes(each): verb for verb, command in VERBS.items() for each in command.params if name in each.opts
    }
    assert len(found) == 1 or name in DIFFERENT, found


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_has_the_same_short_name_in_every_verb(name: str) -> None:
    found = {tuple(each.opts) for command in VERBS.values() for each in command.params if name in each.opts}
    assert len(found) == 1, found


def test_a_short_name_stands_for_one_option() -> None:
    long: dict[str, set[str]] = {}
    for command in VERBS.values():
        for each in command.params:
            for short in each.opts:
                if len(short) == 2:
                    long.setdefault(short, set()).add(each.opts[-1])
    assert [short for short, names in long.items() if len(names) > 1] == []


@pytest.mark.parametrize("command", ["parity", "group workers", "replay parked --yes"])
def test_a_virtual_host_is_chosen_without_a_file(command: str, run: Runner) -> None:
    url = "amqp://127.0.0.1:1/other"
    assert "virtual host 'other'" in run(*command.split(), "-U", url).err
    assert "virtual host 'shop'" in run(*command.split(), "-U", url, "--vhost", "shop").err


def test_the_release_that_is_assumed_is_named_where_it_matters(
    run: Runner, write: Callable[[str], Path]
) -> None:
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


def test_a_topology_file_among_the_keys_is_pointed_out(run: Runner, tmp_path: Path) -> None:
    file = tmp_path / "topology.yaml"
    file.touch()
    found = run("route", "customer-42", str(file), "-q", "a", "-q", "b")
    assert found.err.endswith("is treated as a key; to pass a topology file, use --file\n")
    assert run("route", "customer-42", "topology.yaml", "-q", "a", "-q", "b").err == ""


def test_watch_says_that_the_file_lacks_the_exchange(run: Runner, write: Callable[[str], Path]) -> None:
    found = run("watch", "-x", "jobs", "-f", write(ORDERS), "-U", "amqp://127.0.0.1:1/")
    assert found.code == 64
    assert "expected a file with the exchange 'jobs' of virtual host '/'. Without --file" in found.err
    found = run("watch", "-x", "events", "-f", write(EVENTS), "-U", "amqp://127.0.0.1:1/")
    assert "expected an exchange of virtual host '/' that hashes: one of orders" in found.err


@pytest.mark.parametrize("port", ["0", "65536"])
def test_a_port_is_at_most_65535(run: Runner, port: str) -> None:
    found = run("group", "g", "--stream", "s", "-U", "amqp://127.0.0.1:1/", "--stream-port", port)
    assert found.code == 64
    assert "not in the range 1<=x<=65535" in found.err
