"""Questions to the seat of a member, and holds and records that others wrote: types and sizes are checked, and none ends a member."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import asdict, replace
from hashlib import blake2b

import pytest
from pika import BasicProperties

from rabbit_chx.broker.commands import Refused
from rabbit_chx.broker.deliveries import RawDelivery
from rabbit_chx.changes.records import ChangeRecord
from rabbit_chx.consuming.member.member import Member
from rabbit_chx.consuming.member.roll_call import holds_in, question, questions
from rabbit_chx.errors import InvalidValue
from rabbit_chx.topology.model import Queue
from rabbit_chx.working.markers import CHANGES, HOLD, HOLDS, LONGEST_RECORD, RECORD, Hold, Kind, kind_of
from rabbit_chx.working.messages import Delivery
from rabbit_chx.working.workers import Workers
from tests.unit.test_consuming_lanes import ASKER
from tests.unit.test_consuming_members import QUEUES, Broker, seated
from tests.wire import encoded_properties

VALID = {"queue": "c", "losing": ["a"], "removed": [], "groups": ["billing"], "since": "", "by": ""}


def forged(**wrong: object) -> tuple[str, str]:
    """A hold that anybody can make, because the digest in the name of its queue is not secret: its name and its record."""
    record = json.dumps(VALID | wrong)
    return f"{HOLDS}{'0' * 16}.{blake2b(record.encode(), digest_size=16).hexdigest()}", record


def ask(member: Member, body: bytes) -> None:
    """Let a member read a question and do what it asks for."""
    member._on_question(None, None, BasicProperties(reply_to=ASKER, correlation_id="0"), body)
    member._do_due()


def asking_for(*holds: tuple[str, str]) -> bytes:
    return json.dumps({"holds": dict(holds)}).encode()


@pytest.mark.parametrize(
    "wrong", [{"queue": "q" * 256}, {"queue": "\ud800"}, {"losing": ["q" * 256]}], ids=str
)
def test_a_hold_of_a_queue_that_cannot_exist_is_invalid(wrong) -> None:
    with pytest.raises(InvalidValue, match="that of a hold"):
        Hold.read(*forged(**wrong))


def test_a_question_names_queues_only_by_holds_that_exist() -> None:
    name, record = forged()
    broker = Broker(*QUEUES, "c")
    member = seated(broker, 0)
    ask(member, asking_for((name, record)))
    assert "c" not in member._lanes
    broker.queues.add(name)
    ask(member, asking_for((name, record)))
    assert "c" in member._lanes


def test_a_question_with_many_forged_holds_costs_one_look_at_the_broker() -> None:
    broker = Broker(*QUEUES)
    member = seated(broker, 0)
    looked: list[str] = []
    do = broker._do

    async def counted(command):
        looked.append(command.arguments["queue"])
        return await do(command)

    broker._do = counted
    ask(member, asking_for(*(forged(by=str(number)) for number in range(100))))
    assert len(looked) == 1


def test_a_refused_answer_about_a_hold_does_not_end_a_member(caplog) -> None:
    """The broker lets a member neither see nor check a queue that an operator has named."""
    broker = Broker(*QUEUES, "c")
    member = seated(broker, 0)
    names = [forged(queue=queue) for queue in ("secret", "c")]
    broker.queues |= {name for name, _ in names}
    do = broker._do

    async def refusing(command):
        if command.arguments["queue"] == "secret":
            raise Refused(403, "ACCESS_REFUSED - access to queue 'secret' refused")
        return await do(command)

    broker._do = refusing
    ask(member, asking_for(*names))
    assert member._lanes.keys() == {*QUEUES, "c"}
    assert "are not consumed: ACCESS_REFUSED - access to queue 'secret' refused" in caplog.text


# ---- sizes


def taken(call) -> int:
    """The most bytes that a call takes."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


BLOATED = b"[" + b"{}," * 2_000_000 + b"{}]"


def test_a_question_above_1_mb_is_not_read() -> None:
    """Once, a question of 15 MiB took 410 MB."""
    many = asking_for(*(forged(by=str(number)) for number in range(6_000)))
    assert len(many) > 1 << 20
    assert holds_in(many) == []
    assert taken(lambda: holds_in(BLOATED)) < 1 << 20


def test_the_body_of_a_forged_hold_above_100_kb_is_not_read() -> None:
    digest = blake2b(BLOATED, digest_size=16).hexdigest()
    headers = encoded_properties(headers={HOLD: f"{HOLDS}{'0' * 16}.{digest}"})
    message = Delivery(BLOATED, "a", queue="a", encoded=headers)
    assert taken(lambda: kind_of(message)) < 1 << 20
    assert kind_of(message) is Kind.MESSAGE
    with pytest.raises(InvalidValue, match="that of a hold"):
        Hold.read(*forged(by="b" * LONGEST_RECORD))


def test_more_holds_than_fit_into_a_question_are_named_by_several() -> None:
    assert [*questions([])] == [question()]
    holds = [Hold.of(f"new.{number}", [f"orders.{old}" for old in range(1_000)]) for number in range(200)]
    asked = [*questions(holds)]
    assert len(asked) > 1
    assert [hold for body in asked for hold in holds_in(body)] == holds


# ---- the record of a change

REMOVED = asdict(Queue("b"))


@pytest.mark.parametrize(
    "wrong",
    [
        *({"before": value} for value in (7, [], "x", {"x": 1}, {"x": [1]}, {"x": ["ab"]}, {"x": [["a"]]}, {"x": [["a", 1]]})),
        *({"created": value} for value in (7, None, "abc", {"a": 1}, [1], ["q" * 256])),
        *({"removed": value} for value in (7, "a", [7], [{}], [{"name": "a"}])),
        *({"removed": [REMOVED | wrong]} for wrong in ({"name": 7}, {"type": "none"}, {"type": []}, {"durable": 1}, {"arguments": []})),
        *({name: value} for name in ("since", "by") for value in (7, None, [])),
        *({"exchange": value} for value in (7, [])),
        *({"number": value} for value in (None, "1", True, 1.5, 1 << 70)),
        {"is_abort": 1},
    ],
    ids=str,
)  # fmt: skip
def test_the_record_of_a_change_with_values_of_wrong_types_is_invalid(wrong) -> None:
    record = ChangeRecord(f"{CHANGES}1", {"orders": (("a", "1"),)}, ("c",), (Queue("b"),))
    values = json.loads(record.arguments[RECORD])
    assert ChangeRecord.read(record.name, json.dumps(values)) == record
    with pytest.raises(InvalidValue, match="that of a change"):
        ChangeRecord.read(record.name, json.dumps(values | wrong))
    with pytest.raises(InvalidValue, match="that of a change"):
        ChangeRecord.read(record.name, json.dumps(values | {"by": "b" * LONGEST_RECORD}))


def test_a_record_of_a_version_that_named_no_exchange_is_read_and_can_be_abandoned() -> None:
    record = ChangeRecord(f"{CHANGES}1", {"orders": (("a", "1"),)})
    values = json.loads(record.arguments[RECORD])
    del values["exchange"]
    earlier = ChangeRecord.read(record.name, json.dumps(values))
    assert earlier == replace(record, exchange=None)
    aborting = earlier.aborting("me")
    assert ChangeRecord.read(aborting.name, aborting.arguments[RECORD]) == aborting


# ---- unexpected errors


def fail(*_: object) -> None:
    raise ZeroDivisionError


def test_a_question_that_cannot_be_read_is_left_out_and_logged(monkeypatch, caplog) -> None:
    monkeypatch.setattr("rabbit_chx.consuming.member.member.holds_in", fail)
    member = seated(Broker(*QUEUES), 0)
    ask(member, question())
    assert "'a question to rabbit-chx.seat.billing.0' cannot be read" in caplog.text


def test_a_message_that_cannot_be_read_goes_to_the_handler(monkeypatch, caplog) -> None:
    monkeypatch.setattr("rabbit_chx.working.markers.is_marker", fail)
    monkeypatch.setattr("rabbit_chx.consuming.member.member.is_suspect", fail)
    handled: list[Delivery] = []
    member = seated(Broker(*QUEUES), 0)
    member.workers = workers = Workers(handled.append, 1, 3_600)
    workers._owner, workers.heard = member, float("inf")
    workers.submit = print
    lane = member._lanes["a"]
    lane.attach("channel", 1)
    encoded = encoded_properties(headers={"x-rabbit-chx-marker": "0"})
    member._on_deliveries(lane, "channel", [RawDelivery(1, True, "", "k", encoded, b"body")])
    workers._work_on(lane)
    assert [message.body for message in handled] == [b"body"]
    assert caplog.text.count("cannot be read, and commands nothing") == 2
    assert not member.workers.stopped
