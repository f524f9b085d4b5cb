"""Members of a group in an event loop: order, failures, stops and lost connections."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import pytest
from pika.exceptions import AMQPError

from rabbit_chx.consuming import AsyncGroup, Group, QueueReader, members
from tests.broker.async_shop import Shop
from tests.members import running
from tests.patience import PATIENCE, wait_until
from tests.queues import close_connections

pytestmark = [pytest.mark.broker, pytest.mark.one_release]


@pytest.fixture
def shop(site):
    shop = Shop(site)
    yield shop
    shop.connection.close()


async def test_a_group_runs_while_a_block_runs_and_finishes_the_current_message_at_its_end(shop):
    shop.declare("a")
    shop.publish("a", "1", "2", "3")
    reached, leaving = asyncio.Event(), asyncio.Event()

    async def handle(message):
        if message.body == b"2":
            reached.set()
            await leaving.wait()
            await asyncio.sleep(0.2)
        await shop.handle(message)

    async with asyncio.timeout(PATIENCE), shop.group().running(handle):
        await reached.wait()
        leaving.set()  # the group is told to stop before the handler goes on
    assert shop.handled == ["1", "2"]
    assert shop.left("a", 1) == ["3"]


def test_a_handler_that_blocks_the_event_loop_does_not_stop_the_heartbeats(shop, caplog):
    shop.declare("a")
    shop.publish("a", "1")
    blocked, released = threading.Event(), threading.Event()

    async def handle(message):
        blocked.set()
        released.wait(PATIENCE)
        await shop.handle(message)

    group = shop.group(
        heartbeat=4
    )  # with less, the broker may close the connection when the machine halts for a moment
    with running(group, handle):
        assert blocked.wait(PATIENCE)
        heartbeats = group._member._connection._impl._heartbeat_checker
        before, answered = heartbeats._heartbeat_frames_sent, 0

        def is_alive():
            nonlocal answered
            answered += [each.answered for each in shop.statuses()] == [True]
            return answered > 3 and heartbeats._heartbeat_frames_sent > before + 1

        wait_until(is_alive, "two heartbeats and four answers")
        released.set()
        shop.wait_for("1")
        wait_until(
            lambda: [each.queues["a"].waiting for each in shop.statuses() if each.answered] == [0],
            "the message is acknowledged",
        )
    assert shop.handled == ["1"]
    assert "trying again" not in caplog.text
    assert shop.left("a") == []


@pytest.mark.parametrize("kind", [Group, AsyncGroup])
def test_a_member_uses_the_next_address_also_after_a_lost_connection(shop, kind):
    shop.declare("a")
    addresses = ["amqp://127.0.0.1:1", shop.site.url()]
    group = kind(addresses, exchange="orders", name="billing", connection_name="to be cut", **shop.options)
    plain = lambda message: shop.handled.append(message.body.decode())  # noqa: E731
    with running(group, plain if kind is Group else shop.handle):
        shop.publish("a", "1")
        shop.wait_for("1")
        close_connections(shop.site.broker, "to be cut")
        shop.publish("a", "2")
        shop.wait_for("2")

        def handled():
            return [each.queues["a"].handled for each in members(addresses, "billing") if each.answered]

        # More than two, if the acknowledgement of the first message was lost with the connection.
        wait_until(lambda: sum(handled()) >= 2, "the member counts the messages of both connections")
        with QueueReader(addresses, "a") as reader:
            wait_until(lambda: reader.waiting() == 0, "the reader is connected")


async def test_a_cancelled_run_finishes_the_current_message(shop):
    shop.declare("a")
    shop.publish("a", "1", "2")

    async def handle(message):
        run.cancel()
        await asyncio.sleep(0.05)
        await shop.handle(message)

    run = asyncio.create_task(shop.group().run(handle))
    await asyncio.wait([run], timeout=PATIENCE)
    assert run.cancelled()
    assert shop.handled == ["1"]
    assert shop.left("a", 1) == ["2"]


@pytest.mark.newest_first
def test_a_member_reconnects_drops_deleted_queues_and_consumes_new_ones(shop, caplog):
    shop.declare("a", "b")
    with running(shop.group(queues=["a", "b"]), shop.handle):
        shop.publish("a", "1")
        shop.wait_for("1")
        shop.channel.queue_delete("a")
        shop.publish("b", "2")
        shop.wait_for("2")
        wait_until(
            lambda: any({*each.queues} == {"b"} for each in shop.statuses()), "the deleted queue is dropped"
        )
        shop.site.broker.ctl("close_all_connections", "-p", shop.site.vhost, "a test")
        with suppress(AMQPError):
            shop.connection.close()
        shop.connection = shop.site.connection()
        shop.channel = shop.connection.channel()
        shop.publish("b", "3")
        shop.wait_for("3")
        shop.declare("c")
        shop.channel.queue_declare("d", durable=True)
        shop.publish("d", "5")
        shop.publish("c", "4")
        hold = shop.hold("c", "d")
        wait_until(
            lambda: any("c" in each.queues for each in shop.statuses(hold)), "the new queue is consumed"
        )
        shop.wait_for("4")
    assert [*dict.fromkeys(shop.handled)] == ["1", "2", "3", "4"]
    assert "not consumed: invalid queue: got 'a'" in caplog.text
    assert "not consumed: invalid queue 'd': got a classic queue" in caplog.text
