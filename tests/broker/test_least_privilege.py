"""Publishing, looking and draining with the permissions of docs/permissions.md, and with each of them taken away."""

from __future__ import annotations

import asyncio
import re
import shlex
from contextlib import nullcontext
from functools import partial
from itertools import islice

import click
import pika
import pytest

from rabbit_chx.broker import drain, pass_marker, read
from rabbit_chx.cli import cli
from rabbit_chx.consuming import AsyncGroup, Group
from rabbit_chx.consuming.member.roll_call import members_over
from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.publishing import Publisher
from rabbit_chx.watch import watch
from spark_connector import RabbitMQDataSource
from tests.broker.privileges import (
    OF_STREAMS,
    PASSWORD,
    Grant,
    Shop,
    check_complaint,
    complaint_of,
    line_of_proof,
    release_of,
    run_cli,
    sections,
)
from tests.broker.spark_frames import rows
from tests.members import in_background
from tests.patience import wait_until
from tests.queues import a_channel

pytestmark = [pytest.mark.newest_first, pytest.mark.long, pytest.mark.broker, line_of_proof("commands")]

WORK = {
    what: grant for what, grant in sections().items() if "--yes" not in what and not OF_STREAMS.search(what)
}
# The page: `AsyncGroup` needs the same as `Group`.
WORK |= {f"Async{what}": grant for what, grant in WORK.items() if what.startswith("Group(")}
TOPOLOGY = """
exchanges: {orders: {type: x-consistent-hash, queues: [a, b]}}
queues: {a: {type: classic}, b: {type: classic}}
"""


@pytest.fixture(scope="module")
def shop(broker, tmp_path_factory):
    """Two hash exchanges over two queues; the ring of one is of unknown order, so that there is something to learn."""
    with Shop(broker, tmp_path_factory.mktemp("shop")) as shop:
        shop.write("topology.yaml", TOPOLOGY)
        (shop.folder / "rows.csv").write_text("customer,amount\nc1,5\nc2,7\n")
        with a_channel(shop) as channel:
            for exchange, kind in (("orders", "x-consistent-hash"), ("tenants", "x-modulus-hash")):
                channel.exchange_declare(exchange, kind, durable=True)
                for queue in ("a", "b"):
                    channel.queue_declare(queue, durable=True)
                    channel.queue_bind(queue, exchange, "1")
        yield shop


# -- how each is called -----------------------------------------------------------------------------------------


def one_interval(*observer, **options):
    return islice(watch(*observer, **options), 1)


def command_line(shop, what, capsys, monkeypatch):
    with shop.environment(monkeypatch), monkeypatch.context() as endless:
        endless.setattr("rabbit_chx.cli.watch.intervals", one_interval)
        code, text = run_cli(what, capsys)
    fine = (
        {0, 2} if re.search(" (list|plan|check|apply|group)\\b", what) else {0}
    )  # pending changes, drift and a group without members are no failures
    assert text
    return "" if code in fine else text


def python(shop, what):
    """What the page says, word for word."""
    names = {
        "url": shop.own_url,
        "management_url": shop.broker.management_url,
        "management": shop.own_management,
        "vhost": shop.vhost,
        "Publisher": partial(Publisher, credentials=lambda: (shop.user, PASSWORD)),
        **{
            kind.__name__: partial(
                kind, management=shop.own_management, failover_only=release_of(shop.broker) < (4, 0)
            )
            for kind in (Group, AsyncGroup)
        },
        "read": read,
        "drain": partial(drain, settle=0.1, timeout=20),
    }
    if "connection" not in what:
        made = eval(what, names)
        if isinstance(made, Publisher):
            with made:
                made.publish(b"body", "key")
        if isinstance(made, (Group, AsyncGroup)):
            run_until_it_answers(shop, made)
        return
    with pika.BlockingConnection(pika.URLParameters(shop.own_url)) as connection:
        eval(what, {**names, "connection": connection})


def run_until_it_answers(shop, group):
    """Run a member until it consumes, or raise its error."""

    def stop_later(ended):
        with shop.connection() as connection:
            answered = lambda: any(each.answered for each in members_over(connection, "billing"))  # noqa: E731
            wait_until(lambda: ended.is_set() or answered(), "the member answers", pause=0.1)
        group.stop()

    with in_background(stop_later):
        if isinstance(group, AsyncGroup):
            asyncio.run(group.run(handle_in_loop))
        else:
            group.run(print)


async def handle_in_loop(_):
    """A handler."""


def spark(shop, what):
    schema, batch = rows(2)
    options = dict(re.findall(r'\.option\("(\w+)", "(\w+)"\)', what))
    writer = RabbitMQDataSource({"url": shop.own_url, **options}).writer(schema, overwrite=False)
    writer.commit([writer.write(iter([batch]))])


def attempt(shop, what, capsys, monkeypatch):
    """What somebody without a permission is told; nothing where it worked."""
    with meanwhile(shop, what):
        if what.startswith("rabbit-chx "):
            return command_line(shop, what, capsys, monkeypatch)
        return complaint_of(lambda: (spark if what.startswith("df.") else python)(shop, what))


def meanwhile(shop, what):
    """Consume in another thread where a drain waits for consumers."""
    return in_background(partial(consume_on, shop)) if "drain(" in what else nullcontext()


def consume_on(shop, over):
    with a_channel(shop) as channel:
        for found in channel.consume("a", inactivity_timeout=0.05):
            if found[0] is not None:
                assert pass_marker(channel, found[0], found[1])
            if over.is_set():
                break
        channel.cancel()


def emptied(shop):
    """Take out all messages, and return how many there were."""
    with a_channel(shop) as channel:
        return sum(channel.queue_purge(queue).method.message_count for queue in ("a", "b"))


# -- the tests --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", WORK)
def test_it_takes_what_the_page_says_and_nothing_less(what, shop, broker, capsys, monkeypatch):
    grant = WORK[what]
    before, hints = shop.seen(), set()
    for less in grant.weaker():
        shop.allow(less.left)
        text = attempt(shop, what, capsys, monkeypatch)
        if ("--amqp-only" in what or "hold" in less.name) and release_of(broker) < (4, 3, 1):
            assert text == ""
            continue
        hints.add(check_complaint(text, less, shop, grant))
        assert emptied(shop) == 0
    shop.allow(Grant("^$", "^$", "^$") if hints else grant)
    shop.follow(hints)
    assert attempt(shop, what, capsys, monkeypatch) == ""
    published = emptied(shop)
    assert (published > 0) is bool(re.search(r"publish|Publisher|df\.", what) and "dryRun" not in what)
    # What a connection leaves behind goes with it, and that is a moment after it is closed.
    wait_until(lambda: shop.seen() == before, "the connection has left nothing behind", pause=0.1)


def test_a_user_without_permissions_in_the_virtual_host_is_told_how_to_get_them(shop, capsys, monkeypatch):
    shop.allow(Grant("^$", "^$", "^$", "management"))
    shop.management._request("DELETE", ["permissions", shop.vhost, shop.user])
    text = attempt(shop, "rabbit-chx check topology.yaml", capsys, monkeypatch)
    line = Grant("^$", "^$", "^$").line(shop.vhost, shop.user)
    assert f"or the user '{shop.user}' has no permission there: `{line}` lets the user read it" in text
    with pytest.raises(BrokerUnavailable, match="has no permission in the virtual host"):
        Publisher(shop.own_url).open()
    shop.follow([line])
    assert attempt(shop, "rabbit-chx check topology.yaml", capsys, monkeypatch) == ""


def test_every_verb_that_asks_a_broker_is_on_the_page():
    verbs = {
        name
        for name in cli.list_commands(click.Context(cli))
        if any(each.name == "url" for each in cli.get_command(click.Context(cli), name).params)
    }
    assert {shlex.split(what)[1] for what in sections() if what.startswith("rabbit-chx ")} == verbs
