"""Each kind of change with the permissions of docs/permissions.md, and with each of them taken away."""

from __future__ import annotations

import asyncio
import re
import shlex

import pytest

from rabbit_chx import RabbitChxError
from rabbit_chx.broker import apply_async, read
from rabbit_chx.topology import load, plan
from tests.broker.privileges import Grant, Shop, check_complaint, line_of_proof, run_cli, sections

pytestmark = [pytest.mark.newest_first, pytest.mark.long, pytest.mark.broker, line_of_proof("applies")]

CHANGES = {
    what: grant
    for what, grant in sections().items()
    if what.startswith("rabbit-chx apply") and "--yes" in what
}

A = "queues: {a: {type: classic}}\n"
AB = "queues: {a: {type: classic}, b: {type: classic}}\n"
ORDERS = "exchanges: {orders: {type: x-consistent-hash%s}}\n"
TOPIC = "exchanges: {events: {type: topic, bindings: [%s]}}\n"
LOST = "exchanges: {lost: {type: fanout}}\n"
EVENTS = "exchanges: {orders: {type: x-consistent-hash, queues: [a]}, events: {type: topic%s}}\n"

FILES = {
    "exchange.yaml": ("", ORDERS % ""),
    "alternate.yaml": (
        LOST,
        "exchanges: {lost: {type: fanout}, orders: {type: x-consistent-hash, alternate-exchange: lost}}",
    ),
    "queue.yaml": ("", A),
    "dead-letter.yaml": (
        LOST,
        LOST + "queues: {a: {type: classic, arguments: {x-dead-letter-exchange: lost}}}",
    ),
    "bind.yaml": (AB + ORDERS % "", AB + ORDERS % ", queues: [a, b]"),
    "exchange-bind.yaml": (A + EVENTS % "", A + EVENTS % ", bindings: [{exchange: orders, key: '#'}]"),
    "unbind.yaml": (AB + TOPIC % "{queue: a, key: a}, {queue: b, key: b}", AB + TOPIC % "{queue: a, key: a}"),
    "slots.yaml": (A, A + "exchanges: {tenants: {type: x-modulus-hash, slots: 1, queues: [a]}}"),
    "delete.yaml": (
        "queues: {a: {type: classic}, old.queue: {type: classic}}\nexchanges: {old.exchange: {type: fanout}}",
        A,
    ),
    "policy.yaml": (
        A,
        A + "policies: {limit: {pattern: ^a$, apply-to: queues, definition: {max-length: 9}}}",
    ),
    "clear.yaml": (A + "policies: {limit: {pattern: ^a$, apply-to: queues, definition: {max-length: 9}}}", A),
}
"""What stands before, and what is wanted."""


@pytest.fixture(scope="module")
def shop(broker, tmp_path_factory):
    with Shop(broker, tmp_path_factory.mktemp("shop")) as shop:
        for name, (before, after) in FILES.items():
            shop.write(f"before-{name}", before)
            shop.write(name, after)
        yield shop


def by_command_line(shop, command, capsys, monkeypatch):
    """Whether it was done, how many steps were, and what was said."""
    with shop.environment(monkeypatch):
        code, text = run_cli(command, capsys)
    done = re.search(r"Steps done: ([\d,]+) of", text)
    assert (code == 3) is bool(done), text
    return code == 0, int(done[1]) if done else 0, text


def with_apply_async(shop, command, capsys, monkeypatch):
    words = shlex.split(command)
    wanted = load(shop.folder / words[2])
    try:
        steps = plan(wanted, read(shop.own_management, shop.vhost), prune="--prune" in words)
        asyncio.run(apply_async(shop.own_url, steps, management=shop.own_management))
    except RabbitChxError as error:
        return False, len(getattr(error, "done", ())), str(error)
    return True, 0, ""


# The steps are the same commands in both ways; what differs is how a refusal gets here.
WAYS = [
    *((by_command_line, command) for command in CHANGES),
    *((with_apply_async, command) for command in CHANGES if re.search("dead|bind.yaml|policy", command)),
]


@pytest.mark.parametrize(("way", "command"), WAYS)
def test_a_change_takes_what_the_page_says_and_nothing_less(command, way, shop, capsys, monkeypatch):
    grant = CHANGES[command]
    file = shlex.split(command)[2]
    shop.be(shop.folder / f"before-{file}")
    before, hints = shop.seen(), set()
    for less in grant.weaker():
        shop.allow(less.left)
        done, steps, text = way(shop, command, capsys, monkeypatch)
        assert not done, less
        hints.add(check_complaint(text, less, shop, grant))
        if shop.seen() != before:
            assert steps, f"{less}: half done, and nobody was told"
            shop.be(shop.folder / f"before-{file}")
            assert shop.seen() == before
        else:
            assert not steps
    shop.allow(Grant("^$", "^$", "^$"))
    shop.follow(hints)
    done, _, text = way(shop, command, capsys, monkeypatch)
    assert done, text
    assert shop.seen() != before


def test_the_page_has_each_of_these_files():
    assert {shlex.split(command)[2] for command in CHANGES} == set(FILES)
