"""A user who may only publish to the exchange commands no member: forged markers are ordinary messages."""

from __future__ import annotations

import json
import logging

import pytest
from pika import BasicProperties

from rabbit_chx.broker import connect
from rabbit_chx.broker.driver import PikaDriver
from rabbit_chx.changes.records import declare_commands
from rabbit_chx.consuming import Group, Message, QueueReader
from rabbit_chx.consuming.member.roll_call import members_over
from rabbit_chx.working.markers import HOLD, Hold
from tests.faults.forgeries import (  # noqa: F401 - the fixtures
    BROKEN,
    DIRECT,
    FORGERIES,
    GROWING,
    KEYS,
    KINDS,
    MARKER,
    OF_ANOTHER_NODE,
    QUEUE,
    QUEUES,
    TEMPORARY,
    Kind,
    a_member,
    a_scene,
    an_attacker,
    growing_marker,
    recorded,
    running,
    table,
)
from tests.patience import wait_until
from tests.queues import SINGLE_ACTIVE
from tests.users import a_user
from tests.wire import Encoded

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

ALSO = {
    "test_a_forged_hold_cannot_use_a_real_one": ["4.0"],
    "test_the_answer_to_a_marker_whose_headers_grow_is_short": ["4.0", "3.10"],
    "test_a_reader_reads_on_after_forged_messages": ["4.0", "3.10"],
    "test_an_answer_to_an_unknown_node_costs_no_more_than_answers": ["4.0", "3.10"],
}


@KINDS
def test_a_forged_hold_cannot_use_a_real_one(scene, member, attacker, kind, caplog) -> None:
    hold = Hold.of("orders.0", ["orders.1"])
    PikaDriver(scene.connection).run(declare_commands(hold))
    with running(kind, scene, member.url, scene.handle):
        scene.send(20)
        for key in KEYS:
            attacker.basic_publish(
                "orders", key, hold.record.encode(), BasicProperties(headers={HOLD: hold.name})
            )
        scene.send(20)
        scene.assert_unharmed(caplog)


@KINDS
def test_the_answer_to_a_marker_whose_headers_grow_is_short(scene, member, kind, caplog) -> None:
    """Who may publish to the default exchange can drain, and gets an answer; it contains nothing of the sender's."""
    caplog.set_level(logging.WARNING)
    with (
        a_user(
            scene.site.broker, r"^amq\.gen-", r"^amq\.default$", r"^amq\.gen-", vhost=scene.site.vhost
        ) as peer,
        running(kind, scene, member.url, scene.handle),
        connect(peer.url) as connection,
    ):
        answers: dict[str, BasicProperties] = {}
        channel = connection.channel()
        own = channel.queue_declare("", exclusive=True).method.queue
        for address in (own, "amq.rabbitmq.reply-to"):
            channel.basic_consume(
                address,
                lambda _, __, properties, ___, to=address: answers.update({to: properties}),
                auto_ack=True,
            )
        scene.send(20)
        for address in (own, "amq.rabbitmq.reply-to", DIRECT, BROKEN, TEMPORARY):
            channel.basic_publish("", "orders.0", b"", growing_marker(address))
        scene.send(20)
        wait_until(lambda: connection.process_data_events(0.1) or len(answers) == 2, "two answers")
        for properties in answers.values():
            assert properties.headers == {MARKER: "0" * 16, QUEUE: "orders.0"}
        scene.assert_unharmed(caplog)


@KINDS
def test_a_parked_copy_does_without_headers_that_no_longer_fit(scene, member, attacker, kind, caplog) -> None:
    def handle(message: Message) -> None:
        scene.handle(message)
        if message.body == b"forged":
            raise ValueError("out of stock")

    caplog.set_level(logging.WARNING)
    with running(kind, scene, member.url, handle, attempts=1, on_failure="park", parking_queue="failed"):
        scene.send(10)
        scene.forge(attacker, Encoded(table(GROWING)))
        scene.send(10)
        scene.assert_unharmed(caplog)
        wait_until(lambda: scene.count("failed") == 6, "the copies of the forged messages")
    assert scene.forged == 6


def test_a_reader_reads_on_after_forged_messages(scene, member, attacker, caplog) -> None:
    for properties in FORGERIES.values():
        scene.send(5)
        scene.forge(attacker, properties)
    scene.send(20)
    with QueueReader(member.url, QUEUES[0]) as first, QueueReader(member.url, QUEUES[1]) as second:

        def take() -> bool:
            for reader in (first, second):
                batch = reader.take(100)
                for message in batch.messages:
                    scene.handle(message)
                reader.acknowledge(batch)
            return scene.done

        wait_until(take, "all messages")
        scene.assert_unharmed(caplog)


def test_a_question_of_others_is_not_answered_to_a_queue_and_names_no_queues(scene, member, caplog) -> None:
    """Every user who may publish to the default exchange reaches the seats' queues."""
    caplog.set_level(logging.WARNING)
    scene.channel.queue_declare("other", durable=True, arguments=SINGLE_ACTIVE)
    what = "`Group`: questions to a member's seat, from a user who may publish to the default exchange"
    with (
        recorded(what, scene, 60, "the member answers the group's own question, and holds one seat"),
        a_user(scene.site.broker, "^$", r"^amq\.default$", "^$", vhost=scene.site.vhost) as peer,
        running(Kind(Group), scene, member.url, scene.handle),
        connect(peer.url) as connection,
    ):
        wait_until(
            lambda: [each.answered for each in members_over(connection, "billing")] == [True], "the member"
        )
        channel = connection.channel()
        forged = Hold.of("other", ["victim"], groups=["billing"])
        question = b'{"holds": {"%s": %s}, "queues": ["other"]}' % (
            forged.name.encode(),
            json.dumps(forged.record).encode(),
        )
        channel.basic_consume("amq.rabbitmq.reply-to", lambda *_: None, auto_ack=True)
        for reply_to, number in (("victim", "0"), ("amq.rabbitmq.reply-to", "x" * 200), (None, None)) * 20:
            properties = BasicProperties(reply_to=reply_to, correlation_id=number)
            channel.basic_publish("", "rabbit-chx.seat.billing.0", question, properties)
        scene.send(20)
        scene.assert_unharmed(caplog)
        (answer,) = members_over(connection, "billing", timeout=30)
        assert {*answer.queues} == {*QUEUES}
        assert scene.seats() == ["rabbit-chx.seat.billing.0"]


def test_an_answer_to_an_unknown_node_costs_no_more_than_answers(scene, member, caplog) -> None:
    """RabbitMQ 3.10 ends the connection that publishes it, and the member drops answers for a while."""
    caplog.set_level(logging.WARNING)
    with (
        a_user(scene.site.broker, "^$", r"^amq\.default$", "^$", vhost=scene.site.vhost) as peer,
        running(Kind(Group), scene, member.url, scene.handle),
        connect(peer.url) as connection,
    ):

        def is_answered() -> bool:
            return [each.answered for each in members_over(connection, "billing")] == [True]

        wait_until(is_answered, "the member")
        asked = BasicProperties(reply_to=OF_ANOTHER_NODE, correlation_id="0")
        connection.channel().basic_publish("", "rabbit-chx.seat.billing.0", b"{}", asked)
        if scene.old:
            wait_until(lambda: "questions are not answered" in caplog.text, "the end of the connection")
        scene.send(20)
        scene.assert_unharmed(caplog)
        wait_until(is_answered, "the next answer")
    assert ("questions are not answered" in caplog.text) == scene.old
