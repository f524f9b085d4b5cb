"""Whatever a user sends who may only publish, also to the default exchange, members handle the messages of others once each."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import strategies as st
from pika import BasicProperties

from rabbit_chx.base.names import seat_queue
from rabbit_chx.base.replies import REPLY_TO
from rabbit_chx.broker import connect
from rabbit_chx.consuming.member.roll_call import question
from rabbit_chx.working.markers import HOLD
from tests import traces
from tests.faults.forgeries import (  # noqa: F401 - the fixtures
    BROKEN,
    DIRECT,
    FORGERIES,
    KINDS,
    MARKER,
    QUEUE,
    QUEUES,
    TEMPORARY,
    a_member,
    a_scene,
    an_attacker,
    recorded,
    running,
)
from tests.patience import wait_until
from tests.property.hostile import drawn
from tests.property.test_received_laws import RECORDS, named
from tests.unit.test_consuming_questions import asking_for
from tests.users import a_user

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

ALSO = {
    "test_forged_markers_and_any_other_properties_of_a_publisher_harm_no_member": ["4.0", "3.10"],
    "test_no_questions_and_no_holds_of_a_publisher_harm_a_member": ["4.0", "3.10"],
}
SHORT = st.text(max_size=40).filter(lambda text: len(text.encode()) <= 255)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(max_size=300)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SHORT, inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from([HOLD, MARKER, QUEUE, "x-stream-offset", "x-death", "x-delivery-count"])
TEXTS = st.sampled_from([*QUEUES, "victim", "foreign", "", "0" * 16, DIRECT, BROKEN, TEMPORARY])
COPIES = st.fixed_dictionaries({}, optional=dict.fromkeys(("CC", "BCC"), st.lists(TEXTS, max_size=3)))
HEADERS = st.builds(dict.__or__, st.dictionaries(NAMES | SHORT, TEXTS | VALUES, max_size=5), COPIES)
PROPERTIES = st.builds(
    BasicProperties,
    headers=HEADERS,
    reply_to=st.none() | TEXTS,
    correlation_id=st.none() | SHORT,
    message_id=st.none() | SHORT,
    type=st.none() | SHORT,
    content_type=st.none() | SHORT,
    content_encoding=st.none() | SHORT,
    app_id=st.none() | SHORT,
    expiration=st.none() | st.integers(0, 2**32 - 1).map(str),
    priority=st.none() | st.integers(0, 255),
    delivery_mode=st.none() | st.sampled_from([1, 2]),
    timestamp=st.none() | st.integers(0, 2**64 - 1),
)


@KINDS
def test_forged_markers_and_any_other_properties_of_a_publisher_harm_no_member(
    scene, member, attacker, kind, caplog
) -> None:
    """They are ordinary messages."""
    caplog.set_level(logging.WARNING)
    found = [*FORGERIES.values(), *drawn(PROPERTIES, 150)]
    what = f"`{kind}`: forged markers, and messages with any headers and properties, of a user who may only publish"
    control = "before the check, 6 of 12 forged markers harmed the group or others"
    with recorded(what, scene, 6 * len(found), control), running(kind, scene, member.url, scene.handle):
        for properties in found:
            scene.send(1)
            scene.forge(attacker, properties)
        scene.send(30)
        scene.assert_unharmed(caplog)
        assert len(scene.seats()) == 1
        assert caplog.text.count("has the headers of a marker") <= 2


@KINDS
def test_no_questions_and_no_holds_of_a_publisher_harm_a_member(scene, member, kind, caplog) -> None:
    """Of a user who may publish to the default exchange, to a member with traces."""
    caplog.set_level(logging.WARNING)
    traces.recorded()
    bodies = [record.encode(errors="replace") for record in drawn(RECORDS, 100)]
    what = f"`{kind}` with traces: questions and holds of a user of the default exchange"
    control = "60 messages of others were handled once each, over one connection"
    vhost = scene.site.vhost
    with (
        a_user(scene.site.broker, "^$", "^(amq\\.default|orders)$", "^$", vhost=vhost) as asker,
        connect(asker.url) as connection,
        recorded(what, scene, 4 * len(bodies), control),
        running(kind, scene, member.url, scene.handle),
    ):
        attacker = connection.channel()
        attacker.confirm_delivery()
        answers: list[bytes] = []
        attacker.basic_consume(REPLY_TO, lambda *given: answers.append(given[-1]), auto_ack=True)
        scene.send(30)
        wait_until(lambda: scene.done, "the member has joined")
        for body in bodies:
            name = named(body.decode())
            for text in (asking_for((name, body.decode())), body):
                asked = BasicProperties(reply_to=REPLY_TO, correlation_id="0")
                attacker.basic_publish("", seat_queue("billing", 0), text, asked)
            attacker.basic_publish("", QUEUES[0], body, BasicProperties(headers={HOLD: name}))
            attacker.basic_publish("orders", b"\xff\xfe" + body[:200], b"forged")
        scene.send(30)
        scene.assert_unharmed(caplog)
        answers.clear()
        asked = BasicProperties(reply_to=REPLY_TO, correlation_id="0")
        attacker.basic_publish("", seat_queue("billing", 0), question(), asked)
        wait_until(lambda: connection.process_data_events(0) or answers, "an answer")
        assert json.loads(answers[-1])["queues"].keys() == {*QUEUES}
        assert len(scene.seats()) == 1
    traces.recorded().clear()
    assert "cannot be read" not in caplog.text
