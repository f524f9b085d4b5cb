"""What a member does on a connection, with a model of the broker in place of the connection."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from pika import BasicProperties
from pika.exceptions import ChannelClosedByBroker

from rabbit_chx.base.names import seat_queue
from rabbit_chx.broker.commands import Command, Lost, OnChannel, Refused, carry_out
from rabbit_chx.broker.deliveries import RawDelivery
from rabbit_chx.broker.driver import at_once
from rabbit_chx.consuming.member.interruptions import Interruptions
from rabbit_chx.consuming.member.key_lanes import KeyLane
from rabbit_chx.consuming.member.lanes import Lane, QueueLane
from rabbit_chx.consuming.member.member import Member
from rabbit_chx.consuming.member.roll_call import question
from rabbit_chx.consuming.seats import priority
from rabbit_chx.errors import BrokerUnavailable, InvalidValue
from rabbit_chx.mirror.releases import Release
from rabbit_chx.working.messages import Delivery
from rabbit_chx.working.parking import park
from rabbit_chx.working.settings import Settings
from rabbit_chx.working.workers import Progress, Workers
from tests.unit.test_consuming_lanes import ASKER, SETTINGS

QUEUES = ("a", "b")
MESSAGE = Delivery(b"", "k", queue="a", tag=1)
REFUSED = "ACCESS_REFUSED - read access to queue 'c' in vhost '/' refused for user 'u'"


class Broker:
    """Queues, of which some are locked by other connections, and what is published on the connection of a member."""

    def __init__(self, *queues: str) -> None:
        self.queues = {*queues}
        self.locked: set[str] = set()
        self.published: list[OnChannel] = []

    def run(self, commands: Generator[Command, Any, Any]) -> Any:
        return at_once(carry_out(commands, self._do))

    async def _do(self, command: Command) -> Any:
        assert isinstance(command, OnChannel)
        if command.method == "basic_publish":
            self.published.append(command)
            if command.arguments["routing_key"] not in self.queues | self.locked:
                raise Refused(312, "NO_ROUTE")
            return None
        queue = command.arguments["queue"]
        if queue in self.locked:
            raise Refused(405, "RESOURCE_LOCKED")
        if command.arguments.get("passive") and queue not in self.queues:
            raise Refused(404, f"NOT_FOUND - no queue {queue!r} in vhost '/'")
        self.queues.add(queue)
        return SimpleNamespace(consumer_count=0)


class Aside:
    """A responder that publishes only when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[Generator[Command, Any, object]] = []
        self.publish = self.waiting.append
        self.report = print

    def carry_out(self, broker: Broker) -> list[OnChannel]:
        before, broker.published = broker.published, []
        while self.waiting:
            broker.run(self.waiting.pop(0))
        published, broker.published = broker.published, before
        return published


def member(broker: Broker, source: Callable[[], tuple[str, ...]] = lambda: QUEUES) -> Member:
    """A member whose connection delivers nothing and whose broker is a model."""
    made = Member(Settings(**SETTINGS), None, source, Workers(print, 1, 10), Aside())
    made._driver = broker
    made._release = Release._of_broker("4.3.6")
    made._connection = SimpleNamespace(
        process_data_events=lambda time_limit: None,
        channel=lambda: SimpleNamespace(queue_delete=print),
        add_callback_threadsafe=print,
    )
    made._interruptions = Interruptions(made._settings, made.workers, made._acknowledge, made.fail)
    made.workers.heard = monotonic() + 3600
    Progress.start(made.workers, made)  # without its threads
    return made


class Closed:
    """A channel that the broker has closed, because its queue was deleted."""

    is_open = False


def subscribing(joined: Member, refused: str = "", why: str = "") -> list[str]:
    """The queues that a member tries to consume, whose channels are closed; the broker refuses one of them."""

    def subscribe(lane: Lane, priority: int) -> None:
        tried.append(lane.queue)
        if lane.queue == refused:
            raise ChannelClosedByBroker(403, f"{REFUSED}{why}")
        lane.attach(Closed(), priority)

    tried: list[str] = []
    joined._subscribe = subscribe
    return tried


# ---- the queues at a reconnect


@pytest.mark.parametrize(
    "error", [InvalidValue("exchange", "orders", "bindings"), BrokerUnavailable("no answer")]
)
def test_a_member_that_reconnects_uses_the_queues_it_knows_if_they_cannot_be_read_again(
    error, caplog
) -> None:
    def fail() -> tuple[str, ...]:
        raise error

    broker = Broker(*QUEUES)
    joined = member(broker)
    assert joined._find_seat() == QUEUES
    joined._forget()
    broker.queues.remove("rabbit-chx.seat.billing.0")
    joined._source = fail
    assert joined._find_seat() == QUEUES
    assert joined.seat == 0
    assert "the queues could not be read again" in caplog.text
    with pytest.raises(type(error)):
        member(broker, fail)._find_seat()


def test_a_queue_that_is_found_later_and_may_not_be_read_is_left_out(caplog) -> None:
    joined = member(Broker(*QUEUES, "c"))
    subscribed = subscribing(joined, "c")
    joined._use(joined._find_seat())
    joined._use_if_fit((*QUEUES, "c"))
    joined._do_due()
    joined._use_if_fit((*QUEUES, "c"))
    assert subscribed == [*QUEUES, "c"]
    assert "queue 'c' is not consumed until the member is restarted" in caplog.text
    assert "set_permissions" in caplog.text
    joined._forget()
    joined._source = lambda: (*QUEUES, "c")
    assert joined._find_seat() == QUEUES
    with pytest.raises(ChannelClosedByBroker):
        joined._use("c")


@pytest.mark.parametrize("refused", ["", "c"])
def test_new_queues_are_consumed_once_with_the_priority_that_their_number_gives(refused) -> None:
    new = ("c", "d", "e", "f", "g")
    joined = member(Broker(*QUEUES, *new))
    subscribed = subscribing(joined, refused)
    names = joined._find_seat()
    joined.seat = 1
    joined._use(names)
    joined._use_if_fit(new)
    joined._do_due()
    consumed = sorted({*QUEUES, *new} - {refused})
    assert sorted(joined._lanes) == consumed
    wanted = [priority(1, index, len(consumed)) for index in range(len(consumed))]
    assert [joined._lanes[name].priority for name in consumed] == wanted
    if not refused:
        assert [name for name in subscribed if name in new] == [*new]


def test_an_expired_token_ends_the_connection_and_leaves_out_no_queue() -> None:
    expired = ", backend rabbit_auth_backend_oauth2 returned an error: expired"
    joined = member(Broker(*QUEUES, "c"))
    subscribing(joined, "c", expired)
    joined._use(joined._find_seat())
    with pytest.raises(ChannelClosedByBroker) as caught:
        joined._use_if_fit((*QUEUES, "c"))
    joined._on_lost(caught.value)
    assert joined.status.reason == f"the broker refused it: 403 {REFUSED}{expired}"


def test_a_queue_that_cannot_be_consumed_is_logged_again_only_for_another_reason(caplog) -> None:
    def look() -> list[str]:
        caplog.clear()
        joined._use_if_fit(("c",))
        return [record.getMessage() for record in caplog.records]

    broker = Broker(*QUEUES)
    joined = member(broker)
    missing = look()
    assert len(missing) == 1
    assert "not consumed: invalid queue: got 'c', expected an existing queue" in missing[0]
    assert look() == look() == []
    broker.locked.add("c")
    assert "got an exclusive queue" in look()[0]
    assert look() == []
    broker.locked.clear()
    assert look() == missing
    broker.queues.add("c")
    assert joined._fit(["c"]) == ("c",)
    broker.queues.remove("c")
    assert look() == missing


def test_a_member_that_reconnects_waits_for_its_queues_if_all_are_deleted(monkeypatch) -> None:
    def source() -> tuple[str, ...]:
        reasons.append(joined.status.reason)
        if len(reasons) == 4:
            broker.queues.update(QUEUES)
        return QUEUES

    module = "rabbit_chx.consuming.member.member"
    monkeypatch.setattr(f"{module}.Backoff", lambda: SimpleNamespace(failed=lambda: 0.0))
    reasons: list[str] = []
    broker = Broker(*QUEUES)
    joined = member(broker, source)
    joined._find_seat()
    joined._forget()
    broker.queues.clear()
    assert joined._find_seat() == QUEUES
    assert joined.seat == 0
    assert reasons == ["it has not connected yet"] * 2 + ["none of its queues exists"] * 2


# ---- alarms, under which the broker stops reading from a connection that publishes


def seated(broker: Broker, seat: int) -> Member:
    """A member that has just joined while others have the lower seats."""

    def nothing(*_: object) -> None: ...

    lower = {seat_queue("billing", number) for number in range(seat)}
    broker.locked |= lower
    joined = member(broker)
    joined._subscribe = nothing
    joined._answer_questions = nothing
    joined._consume("4.3.6")
    assert joined.seat == seat
    return joined


def test_a_member_looks_for_a_lower_seat_only_after_its_last_search_has_ended(monkeypatch) -> None:
    monkeypatch.setattr("rabbit_chx.consuming.member.member.looks_lower", lambda *_: True)
    broker = Broker(*QUEUES)
    joined = seated(broker, 1)
    joined._responder.carry_out(broker)
    searches = joined._responder.waiting
    for _ in range(2):
        joined._move()
    assert len(searches) == 1
    searches.pop().close()  # as a responder drops it
    joined._move()
    assert len(searches) == 1
    joined._responder.carry_out(broker)
    joined._move()
    assert len(searches) == 1


def test_a_member_that_is_stopping_does_not_move(monkeypatch) -> None:
    monkeypatch.setattr("rabbit_chx.consuming.member.member.looks_lower", lambda *_: True)
    broker = Broker(*QUEUES)
    joined = seated(broker, 1)
    broker.locked.clear()
    joined._move()
    joined._responder.carry_out(broker)
    joined.workers.stopping.set()
    joined._do_due()
    assert joined.seat == 1


def test_a_member_answers_a_question_on_another_connection() -> None:
    broker = Broker(*QUEUES)
    joined = seated(broker, 0)
    joined._responder.carry_out(broker)
    joined._on_question(None, None, BasicProperties(reply_to=ASKER, correlation_id="0"), question([]))
    assert broker.published == []
    broker.queues.add(ASKER)
    (answer,) = joined._responder.carry_out(broker)
    assert answer.arguments["routing_key"] == ASKER
    assert answer.arguments["properties"] == {"correlation_id": "0"}
    assert json.loads(answer.arguments["body"])["queues"].keys() == {*QUEUES}


def test_a_member_that_may_not_publish_ends() -> None:
    async def refuse(_: Command) -> None:
        raise Refused(403, "ACCESS_REFUSED")

    broker = Broker(*QUEUES)
    joined = seated(broker, 0)
    broker._do = refuse
    joined._responder.carry_out(broker)
    with pytest.raises(Refused, match="ACCESS_REFUSED"):
        joined._do_due()


# ---- stops


class Slow(deque[Delivery]):
    """Messages that are ready, and that a worker finds while something else begins."""

    def __init__(self, begin: Callable[[], object]) -> None:
        super().__init__([MESSAGE])
        self._begin = begin

    def __bool__(self) -> bool:
        self._begin()
        time.sleep(0.2)
        return True


def test_a_stop_waits_for_a_message_that_a_worker_is_just_taking() -> None:
    """Otherwise the broker redelivers it while it is handled."""
    joined = member(Broker())
    lane = KeyLane("a", lambda message: message.routing_key, 1, None)
    lane.attach("channel", 1)
    lane.add([MESSAGE])
    joined._known, joined._acknowledge_all = {"a": lane}, lambda: None
    stop = threading.Thread(target=joined._finish, daemon=True)
    lane._ready = Slow(stop.start)
    assert joined.workers.next_of(lane) == ("channel", MESSAGE)
    stop.join(0.5)
    assert stop.is_alive()
    lane.abandon()
    stop.join(60)
    assert not stop.is_alive()


def test_a_member_whose_parking_queue_is_gone_waits_for_the_handlers_of_other_messages() -> None:
    joined = member(Broker())
    parks = park("gone", MESSAGE, {})
    joined._ask(lambda: joined._driver.run(parks))
    joined._do_due()
    assert joined.workers.stopped  # so that it ends as after any other stop
    assert "parking_queue: got 'gone'" in str(joined._error)
    assert "expected an existing queue" in str(joined._error)


def test_a_full_parking_queue_keeps_no_other_queue_from_being_acknowledged(monkeypatch) -> None:
    def handle_others() -> None:  # while the broker decides
        taken = joined.workers.next_of(other)
        while taken is not None:
            taken = joined.workers.next_of(other, taken)

    async def reject(command: OnChannel) -> None:
        if command.method == "basic_publish":
            handle_others()
            raise Refused(312, "NO_ROUTE")

    acknowledged: list[object] = []
    monkeypatch.setattr(
        "rabbit_chx.consuming.member.member.acknowledge", lambda *each: acknowledged.append(each)
    )
    broker = Broker()
    broker._do = reject
    joined = member(broker)
    given = SETTINGS | {"on_failure": "park", "parking_queue": "parked", "attempts": 1}
    joined._interruptions = Interruptions(Settings(**given), joined.workers, joined._acknowledge, joined.fail)
    failed, other = QueueLane("a"), QueueLane("b")
    failed.attach("channel of a", 1)
    other.attach("channel of b", 1)
    failed.add([Delivery(b"", "k", queue="a", tag=1)])
    other.add([Delivery(b"", "k", queue="b", tag=tag) for tag in (1, 2, 3)])
    joined.on_interruption(failed, *joined.workers.next_of(failed), ValueError("out of stock"))
    joined._do_due()
    assert acknowledged == [("channel of b", [(3, True)])]
    assert failed.paused


def test_what_is_handled_is_acknowledged_before_a_refusal_closes_the_channels(monkeypatch) -> None:
    did: list[str] = []
    for name in ("acknowledge", "close_in_one_step"):
        monkeypatch.setattr(
            f"rabbit_chx.consuming.member.member.{name}", lambda *_, name=name, **__: did.append(name)
        )
    joined = member(Broker())
    lane = QueueLane("a")
    lane.attach("channel", 1)
    lane.add([MESSAGE])
    lane.finish(lane.take(), "channel")
    joined._lanes = {"a": lane}
    joined._calls.append(lambda: joined._raise(Refused(403, "ACCESS_REFUSED")))
    with pytest.raises(Refused):
        joined._until_stopped()
    assert did == ["acknowledge", "close_in_one_step"]


# ---- deleted queues


def test_a_deleted_queue_that_is_declared_again_waits_for_its_handler_and_keeps_its_counts() -> None:
    broker = Broker(*QUEUES)
    joined = member(broker)
    subscribing(joined)
    joined._find_seat()
    joined._use(QUEUES)
    lane = joined._lanes["a"]
    lane.add([Delivery(b"", "k", queue="a", tag=tag) for tag in (1, 2)])
    running = joined.workers.next_of(lane, joined.workers.next_of(lane))
    assert running is not None
    for by_the_broker in (True, False):
        broker.queues.remove("a")
        if by_the_broker:
            joined._on_cancelled(lane, lane.channel)
        else:
            joined._forget()
            joined._find_seat()
        assert joined._lanes.keys() == {"b"}
        assert joined._busy() == ["a"]  # so a stop waits for the handler
        assert joined.status.handled == 1
        broker.queues.add("a")
        joined._use_if_fit(["a"])
        lane = joined._lanes["a"]
        assert lane.add([Delivery(b"", "k", queue="a", tag=1)]) == 0  # no other worker
        assert joined.status.queues == QUEUES
    joined.workers.finished(lane, *running)
    assert joined.status.handled == 2


# ---- keys


@pytest.mark.timeout(60)  # under the lock of the workers, the look at the status would wait for ever
def test_a_function_that_gives_the_key_of_a_message_may_look_at_the_status() -> None:
    joined = member(Broker())
    lane = KeyLane("a", lambda _: joined.status.queues, 1, None)
    joined._lanes = joined._known = {"a": lane}
    lane.attach("channel", 1)
    joined._on_deliveries(lane, "channel", [RawDelivery(1, False, "", "k", b"\0\0", b"")])
    assert lane.take().key == ("a",)


# ---- pauses


def test_after_a_pause_only_an_answer_of_the_broker_allows_a_member_to_handle_messages() -> None:
    asked: list[tuple[object, ...]] = []

    def deal_with(*asking: object):
        asked.append(asking)
        yield from ()

    paused = member(Broker("rabbit-chx.seat.billing.0"))
    paused.workers.heard = monotonic() - 60
    paused._turn(0.0)
    lane = QueueLane("a")
    lane.attach("channel", 1)
    assert lane.add([MESSAGE, Delivery(b"", "k", queue="a", tag=2)])
    assert paused.workers.next_of(lane) is None
    paused._interruptions.deal_with = deal_with
    (call,) = paused._calls
    call()
    assert asked == [(lane, "channel", MESSAGE, None)]
    lane.put_back(MESSAGE, "channel")
    paused._listen()
    assert paused.workers.next_of(lane) == ("channel", MESSAGE)
    paused._driver.queues.clear()
    with pytest.raises(Lost, match="the queue of this member's seat is gone"):
        paused._listen()
