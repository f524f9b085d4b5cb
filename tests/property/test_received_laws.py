"""Whatever others write into questions, holds, records and messages, members answer, hand messages to the handler, and go on."""

from __future__ import annotations

import json
from functools import cache
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings, strategies as st

from rabbit_chx.changes.records import ChangeRecord
from rabbit_chx.consuming.member.lanes import QueueLane
from rabbit_chx.consuming.member.roll_call import _parsed
from rabbit_chx.consuming.replay import Choice, Outcome, _what_becomes_of, origin_of
from rabbit_chx.errors import InvalidValue
from rabbit_chx.messages.traces import in_spans
from rabbit_chx.mirror.releases import Release
from rabbit_chx.working.markers import CHANGES, HOLD, HOLDS, Hold, kind_of
from rabbit_chx.working.messages import Delivery
from rabbit_chx.working.workers import Workers
from tests.proof import LONG
from tests.property.strategies import HEADER_VALUES, TEXT
from tests.traces import recorded
from tests.unit.test_consuming_lanes import ASKER
from tests.unit.test_consuming_members import QUEUES, Broker, seated
from tests.unit.test_consuming_questions import REMOVED, VALID, ask, asking_for
from tests.unit.test_consuming_replay import Driver
from tests.wire import encoded_properties

many = settings(max_examples=1_000 if LONG else 150, deadline=None)

# ---- JSON

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just("q" * 256),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def like(valid: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects that have other values in some places, or lack them."""
    changed = st.dictionaries(st.sampled_from([*valid]) | st.text(max_size=5), VALUES, max_size=2)
    gone = st.sets(st.sampled_from([*valid]), max_size=1)
    return st.builds(
        lambda new, without: {k: v for k, v in (valid | new).items() if k not in without}, changed, gone
    )


CHANGE = {"before": {"orders": [["a", "1"]]}, "created": ["c"], "removed": [REMOVED]} | {
    "since": "", "by": "", "number": 1, "is_abort": False, "exchange": ""
}  # fmt: skip
STATUS = {"host": "h", "pid": 1, "queues": {"a": {"handled": 1, "rate": 0.5, "hold": None, "oldest": 1.0}}}
BODIES = st.binary(max_size=40) | VALUES.map(lambda value: json.dumps(value).encode())


def named(record: str) -> str:
    """The name of a hold with this record, which anybody can compute."""
    digest = blake2b(record.encode(errors="replace"), digest_size=16).hexdigest()
    return f"{HOLDS}{'0' * 16}.{digest}"


RECORDS = (like(VALID) | VALUES).map(json.dumps)
QUESTIONS = st.lists(RECORDS, max_size=3).map(
    lambda each: asking_for(*((named(record), record) for record in each))
)
THERE = st.booleans()


@cache
def a_member() -> tuple[Any, Broker]:
    broker = Broker(*QUEUES)
    return seated(broker, 0), broker


@many
@given(QUESTIONS | BODIES | VALUES.map(lambda value: json.dumps({"holds": value}).encode()))
def test_no_question_ends_a_member_or_has_it_consume_what_no_hold_names(body) -> None:
    member, _ = a_member()
    ask(member, body)
    assert member._lanes.keys() == {*QUEUES}


@many
@given(QUESTIONS)
def test_a_question_about_holds_that_exist_ends_no_member(body) -> None:
    """Once, one such question, of anybody who may write to the default exchange, ended any member for good."""
    broker = Broker(*QUEUES)
    member = seated(broker, 0)
    broker.queues |= json.loads(body)["holds"].keys()
    ask(member, body)


@many
@given(RECORDS | VALUES)
def test_the_record_of_a_hold_has_the_types_of_a_hold_or_is_invalid(record) -> None:
    try:
        hold = Hold.read(named(record) if isinstance(record, str) else named(""), record)
    except InvalidValue:
        return
    assert {type(each) for each in (hold.queue, hold.since, hold.by)} == {str}
    assert {type(each) for names in (hold.losing, hold.removed, hold.groups) for each in (names, *names)} <= {
        tuple,
        str,
    }
    assert Hold.read(named(hold.record), hold.record).queue == hold.queue


@many
@given(like(CHANGE).map(json.dumps) | VALUES)
def test_the_record_of_a_change_can_be_written_again_or_is_invalid(record) -> None:
    try:
        found = ChangeRecord.read(f"{CHANGES}1", record)
    except InvalidValue:
        return
    assert ChangeRecord.read(f"{CHANGES}1", found.arguments["x-rabbit-chx-record"]) == found


@many
@given(like(STATUS).map(lambda value: json.dumps(value).encode()) | BODIES)
def test_the_answer_of_a_member_is_a_status_or_none(body) -> None:
    found = _parsed(3, body)
    assert found.seat == 3
    assert {type(each) for each in (found.host, *found.queues)} == {str}


# ---- messages

NAMES = st.sampled_from([HOLD, "x-rabbit-chx-marker", "x-rabbit-chx-queue", "x-death", "traceparent",
                         "tracestate", "baggage", "x-first-death-queue", "x-rabbit-chx-parked-exchange",
                         "x-rabbit-chx-parked-routing-key", "x-rabbit-chx-parked-queue", "x-rabbit-chx-parked-offset"])  # fmt: skip
SHORT = TEXT | st.binary(max_size=60)
DEATHS = st.lists(
    st.dictionaries(st.sampled_from(["queue", "exchange", "routing-keys", "reason"]), HEADER_VALUES),
    max_size=2,
)
HEADERS = st.dictionaries(NAMES | SHORT, HEADER_VALUES | DEATHS, max_size=6)


ENCODED = st.builds(
    encoded_properties, headers=HEADERS, message_id=st.none() | SHORT, correlation_id=st.none() | SHORT, reply_to=st.none() | SHORT | st.just(ASKER)
) | st.binary(max_size=60)  # fmt: skip
MESSAGES = st.builds(
    Delivery,
    st.binary(max_size=20) | RECORDS.map(lambda text: text.encode(errors="replace")),
    SHORT,
    queue=st.just("a"),
    exchange=st.sampled_from(["", "orders"]) | SHORT,
    redelivered=st.booleans(),
    encoded=ENCODED,
    tag=st.just(1),
)


@many
@given(MESSAGES)
def test_every_message_reaches_the_handler_once_or_is_dealt_with_as_what_it_is(message) -> None:
    """With traces, and whatever its properties are."""
    recorded()
    handled: list[Delivery] = []
    interrupted: list[object] = []
    workers = Workers(in_spans(handled.append, "billing"), 1, 3_600)
    workers.heard = float("inf")
    workers._owner = SimpleNamespace(
        on_progress=lambda: None,
        on_interruption=lambda *given: interrupted.append(given[-1]),
        fail=interrupted.append,
    )
    lane = QueueLane("a")
    lane.attach("channel", 1)
    lane.add([message])
    workers._work_on(lane)
    is_ours = kind_of(message).value != "message"
    assert handled == ([] if is_ours else [message])
    assert interrupted in ([], [None])
    assert not interrupted or is_ours


@many
@given(MESSAGES, st.sampled_from(["3.10.8", "4.3.6"]))
def test_no_message_stops_a_replay(message, release) -> None:
    driver = Driver()
    origin = origin_of(message, Release._of_broker(release))
    found = _what_becomes_of(message, origin, Choice(), driver)
    assert found.outcome in {Outcome.REPLAYED, Outcome.UNKNOWN, Outcome.REFUSED}
    for copy in driver.published:
        assert copy.arguments["exchange"] or copy.arguments["routing_key"] == origin.queue
