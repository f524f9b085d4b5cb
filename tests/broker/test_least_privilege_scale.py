"""`scale` and `rebalance` with the permissions of docs/permissions.md, and with each of them taken away.

A command that fails for lack of a permission may have changed something already. With the permission, it finishes the
change when it is run again.
"""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from rabbit_chx.broker import apply, read
from rabbit_chx.consuming import Group
from rabbit_chx.consuming.member.roll_call import members_over
from rabbit_chx.topology import load, plan
from rabbit_chx.topology.planning.slot_changes import plan_moves
from tests.broker.privileges import Grant, Shop, check_complaint, line_of_proof, run_cli, sections
from tests.broker.scaling_scene import MEMBER
from tests.members import running
from tests.patience import wait_until
from tests.proof import LONG
from tests.users import a_user

pytestmark = [
    pytest.mark.long,
    pytest.mark.one_release,
    pytest.mark.since_4_0,
    pytest.mark.broker,
    line_of_proof("`scale` and `rebalance`"),
]

CHANGES = {
    what: grant
    for what, grant in sections().items()
    if what.startswith(("rabbit-chx scale", "rabbit-chx rebalance"))
}
TOPOLOGY = """
exchanges:
  orders: {type: x-consistent-hash, queues: [a, b]}
  tenants: {type: x-modulus-hash, slots: 4, queues: {d: 3, e: 1}}
queues: {a: {preset: ordered}, b: {preset: ordered}, d: {preset: ordered}, e: {preset: ordered}}
"""
ONLY_WITHOUT_RECORD = {("write", "orders"), ("write", r"tenants\.slot\.2")}
"""Only the first record of an exchange's order needs these, and `apply` has already created it here."""
ONCE = sorted(
    set.intersection(*({less[:2] for less in CHANGES[each].weaker()} for each in CHANGES if "scale" in each))
)
"""What both ways of `scale` need is taken away from one of them only, and in `make proof` from both."""
EVERYTHING = Grant(".*", ".*", ".*", "management")


@pytest.fixture(scope="module")
def shop(broker, tmp_path_factory):
    """A ring of two queues, and unevenly divided slots, with a member of a group on each exchange."""
    with Shop(broker, tmp_path_factory.mktemp("shop")) as shop:
        file = shop.write("topology.yaml", TOPOLOGY)
        (shop.folder / "keys.txt").write_text("\n".join(f"tenant-{number}" for number in range(1000)))
        apply(shop.url(), plan(load(file), read(shop.management, shop.vhost)), management=shop.management)
        with consumed(shop, "orders"), consumed(shop, "tenants"):
            yield shop


@contextmanager
def consumed(shop, exchange):
    """A member of a user of its own, so that it and the commands can only rely on what the page grants to each."""
    with a_user(
        shop.broker, *MEMBER, "^([a-e]$|rabbit-chx\\.seat\\.)", vhost=shop.vhost, tags="management"
    ) as user:
        member = Group(user.url, exchange=exchange, name=exchange, management=user.management)
        with running(member):
            with shop.connection() as connection:
                wait_until(lambda: members_over(connection, exchange), "a member has joined", pause=0.1)
            yield


def slots_of(shop):
    bounds = shop.management.bindings(shop.vhost)
    return {bound.source: bound.destination for bound in bounds if bound.source.startswith("tenants.slot.")}


def restore(shop, slots, capsys, monkeypatch):
    """Restore the exchanges, as a user with every permission."""
    shop.allow(EVERYTHING)
    moved = {slot: queue for slot, queue in slots.items() if slots_of(shop)[slot] != queue}
    observed = read(shop.management, shop.vhost)
    if moved:
        planned = plan_moves(load(shop.folder / "topology.yaml"), "tenants", moved, observed)
        apply(shop.url(), planned, management=shop.management)
    with shop.environment(monkeypatch):
        code, text = run_cli("rabbit-chx scale topology.yaml --yes", capsys)
    assert code == 0, text


@pytest.mark.parametrize(
    "command",
    [pytest.param(each, marks=() if "--remove" in each else pytest.mark.proof) for each in CHANGES],
)
def test_a_command_needs_exactly_the_listed_permissions(command, shop, capsys, monkeypatch):
    grant, slots = CHANGES[command], slots_of(shop)
    before, elsewhere = shop.seen(), () if LONG else ONCE["add" in command :: 2]
    for less in grant.weaker():
        if less[:2] in elsewhere:
            continue
        shop.allow(less.left)
        with shop.environment(monkeypatch):
            code, text = run_cli(command, capsys)
            if (less.missing, less.name) not in ONLY_WITHOUT_RECORD:
                assert code in {1, 3}, f"{less}: {text}"
                shop.follow([check_complaint(text, less, shop, grant)])
                code, text = run_cli(command, capsys)
            assert code == 0, f"{less}: {text}"
        assert shop.seen() != before, less
        restore(shop, slots, capsys, monkeypatch)
        # An exclusive queue may be there for a moment after the end of its connection.
        wait_until(lambda: shop.seen() == before, f"{less}: all is as before", pause=0.1)


def test_both_commands_are_on_the_page():
    assert {what.split()[1] for what in CHANGES} == {"scale", "rebalance"}
