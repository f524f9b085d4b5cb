"""Each queue or, with order="key", each key is handled in order and one message at a time, whatever happens to the channel or to other keys."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections import Counter, defaultdict
from decimal import Decimal

import pytest
from hypothesis import given, strategies as st

from rabbit_chx.consuming import Message
from rabbit_chx.consuming.member.key_lanes import KeyLane
from rabbit_chx.consuming.member.lanes import Lane, QueueLane
from rabbit_chx.consuming.queues.sources import key_of
from rabbit_chx.errors import InvalidValue
from rabbit_chx.mirror.ring import ToExchange
from rabbit_chx.topology.model import CONSISTENT_HASH, Binding, Exchange, Topology
from rabbit_chx.working.messages import Delivery
from tests.unit.test_consuming_lanes import ANSWERS, DRAIN
from tests.wire import encoded_properties

PREFETCH, WORKERS = 12, 3


def routing_key(message: Message) -> str:
    return message.routing_key


def add(lane: Lane, *messages: Delivery) -> int:
    """Add messages as a member does; return how often the lane was submitted to a worker."""
    lane.read(messages)
    return lane.add(messages)


class Queue:
    """A model of a queue and its consumer: what is not acknowledged is redelivered in order on a new channel."""

    def __init__(self, lane: Lane, keys: list[str]) -> None:
        self.lane = lane
        self.messages = dict(enumerate(keys))
        self.submitted = 0
        self.at_work: list[tuple[Delivery, object, int]] = []
        self.paused: list[tuple[Delivery, object]] = []
        self.seen: list[int] = []
        self.handled: set[int] = set()
        self.acknowledged: set[int] = set()
        self.delivered: set[int] = set()
        self.connect()

    def connect(self) -> None:
        self.lane.attach(object(), 1)
        self.undelivered = [number for number in self.messages if number not in self.acknowledged]
        self.of_tag: dict[int, int] = {}
        self.last_tag = 0

    def deliver(self) -> None:
        if self.undelivered and len(self.of_tag) < PREFETCH:
            number = self.undelivered.pop(0)
            self.last_tag = tag = self.last_tag + 1
            self.of_tag[tag] = number
            key = self.messages[number]
            marker = {"headers": DRAIN, **ANSWERS} if key == "marker" else {}
            body, properties = str(number).encode(), encoded_properties(**marker)
            message = Delivery(body, "q" if marker else key, queue="q", encoded=properties, tag=tag)
            message.suspect = number in self.delivered and number % 2 == 0
            self.delivered.add(number)
            self.submitted += add(self.lane, message)

    def take(self) -> None:
        if self.submitted:
            self.submitted -= 1
            message = self.lane.take()
            if message is not None:
                number = int(message.body)
                self._check_may_begin(number)
                self.seen.append(number)
                self.at_work.append((message, self.lane.channel, number))

    def _check_may_begin(self, number: int) -> None:
        key, now = self.messages[number], [at for _, _, at in self.at_work]
        assert key not in [self.messages[at] for at in now], "two messages of a key at the same time"
        if key == "marker":
            assert {earlier for earlier in self.messages if earlier < number} <= self.handled
        for at in range(number):
            if self.messages[at] in {key, "marker"}:
                assert at in self.handled, "it overtakes an earlier message"

    def finish(self, which: int) -> None:
        if self.at_work:
            message, channel, number = self.at_work.pop(which % len(self.at_work))
            self.handled.add(number)
            self.submitted += self.lane.finish(message, channel) + 1

    def fail(self, which: int) -> None:
        if self.at_work:
            message, channel, _ = self.at_work.pop(which % len(self.at_work))
            paused, submit = self.lane.pause(message, channel)
            self.submitted += submit
            if paused:
                self.paused.append((message, channel))

    def retry(self, which: int) -> None:
        if self.paused:
            self.submitted += self.lane.resume(*self.paused.pop(which % len(self.paused)))

    def acknowledge(self, *, lazily: bool = False) -> None:
        for tag, multiple in self.lane.to_acknowledge(lazily=lazily):
            assert tag in self.of_tag, "the broker refuses unknown tags"
            for each in [each for each in self.of_tag if each == tag or (multiple and each < tag)]:
                number = self.of_tag.pop(each)
                assert number in self.handled, "an unfinished message is acknowledged"
                self.acknowledged.add(number)

    def acknowledge_lazily(self) -> None:
        self.acknowledge(lazily=True)
        held = self.lane._delivered - self.lane.acked
        assert held == len(self.of_tag), "the lane knows how many are not acknowledged"

    def lose(self) -> None:
        self.lane.detach()
        self.connect()

    def leave(self) -> None:
        """Consume again on another channel as soon as no message is being handled."""
        self.lane.leaving = True
        if self.lane.is_idle:
            self.acknowledge()
            self.lose()


ACTIONS = st.tuples(
    st.sampled_from(
        [
            *(["deliver", "take", "finish"] * 2),
            *("fail", "retry", "acknowledge", "acknowledge_lazily", "lose", "leave"),
        ]
    ),
    st.integers(0, 5),
)


@pytest.mark.parametrize("order", ["queue", "key"])
@given(
    keys=st.lists(st.sampled_from(["a", "b", "c", "d", "marker"]), min_size=1, max_size=30),
    actions=st.lists(ACTIONS, min_size=30, max_size=150),
)
def test_each_key_is_in_order_and_nothing_unfinished_is_acknowledged_or_left(order, keys, actions) -> None:
    if order == "queue":
        queue = Queue(QueueLane("q"), keys := ["a"] * len(keys))
    else:
        queue = Queue(KeyLane("q", routing_key, WORKERS, room=None, many=2), keys)
    for name, which in actions:
        act = getattr(queue, name)
        act(which) if name in {"finish", "fail", "retry"} else act()
    # Whatever happened before, everything is handled in the end, and each key was first seen in order.
    for _ in range(10 * len(keys) + 10):
        for step in (queue.deliver, queue.take, queue.acknowledge):
            step()
        queue.retry(0)
        queue.finish(0)
        if queue.lane.leaving:
            queue.leave()
    queue.acknowledge()
    assert queue.acknowledged == queue.messages.keys()
    assert queue.lane.is_idle
    assert queue.lane.in_hand == 0
    assert list(queue.lane.unfinished) == []
    firsts: defaultdict[str, list[int]] = defaultdict(list)
    for number in dict.fromkeys(queue.seen):
        firsts[keys[number]].append(number)
    assert all(numbers == sorted(numbers) for numbers in firsts.values())


def deliver(lane: KeyLane, *keys: str, first: int = 1) -> int:
    """Add messages; return how often the lane was submitted to a worker."""
    return add(lane, *(Delivery(b"", key, queue="q", tag=tag) for tag, key in enumerate(keys, first)))


def lane_of(
    *keys: str, key=routing_key, most: int = WORKERS, room: int | None = None, **more: int
) -> KeyLane:
    lane = KeyLane("q", key, most, room, **more)
    lane.attach("channel", 1)
    if keys:
        deliver(lane, *keys)
    return lane


def test_only_as_many_workers_are_called_as_there_are_keys_to_handle() -> None:
    lane = lane_of()
    assert deliver(lane, "a", "a", "a") == 1
    assert deliver(lane, *"bcdefg", first=4) == WORKERS - 1


def test_few_messages_behind_a_slow_one_are_acknowledged_together_if_it_ends_soon() -> None:
    lane = lane_of("slow", "a", "b", "c", most=WORKERS + 1, many=2)
    slow, *others = [lane.take() for _ in range(4)]
    lane.finish(others[0], "channel")
    assert lane.to_acknowledge(lazily=True) == []
    lane.finish(others[1], "channel")
    assert lane.to_acknowledge(lazily=True) == [(2, False), (3, False)]
    lane.finish(others[2], "channel")
    assert lane.to_acknowledge(lazily=True) == []
    lane.finish(slow, "channel")
    assert lane.to_acknowledge(lazily=True) == [(4, True)]


def test_acknowledging_costs_the_same_however_many_messages_have_passed_a_slow_one() -> None:
    passed = 20_000
    lane = lane_of("slow", *map(str, range(passed + 1)))
    lane.take()
    for _ in range(passed):
        lane.finish(lane.take(), "channel")
    assert len(lane.to_acknowledge()) == passed
    lane.finish(lane.take(), "channel")
    tracemalloc.start()
    try:
        assert lane.to_acknowledge() == [(passed + 2, False)]
        assert tracemalloc.get_traced_memory()[1] < passed
    finally:
        tracemalloc.stop()


def test_a_failing_key_holds_a_bounded_part_of_the_prefetch() -> None:
    lane = lane_of("poison", room=2)
    message = lane.take()
    lane.pause(message, "channel")
    assert lane.take() is None
    assert deliver(lane, "poison", first=2) == 0
    assert not lane.is_full_behind(message)
    assert deliver(lane, "poison", first=3) == 1  # tried at once, although its delay is not over
    assert lane.is_full_behind(message)
    assert lane.take() is message
    assert not lane.resume(message, "channel")


def test_the_attempt_that_was_due_for_an_earlier_message_of_a_key_is_none_at_the_next_one() -> None:
    lane = lane_of("poison", "poison", room=2)
    first = lane.take()
    lane.pause(first, "channel")
    deliver(lane, "poison", first=3)
    assert lane.take() is first
    lane.finish(first, "channel")
    second = lane.take()
    lane.pause(second, "channel")
    assert not lane.resume(first, "channel")
    assert lane.take() is None
    lane.resume(second, "channel")
    assert lane.take() is second


@pytest.mark.parametrize(
    ("key", "suspect"),
    [(lambda message: message.headers["tenant"], False), (lambda _: [], False), (routing_key, True)],
    ids=["no key", "no hash", "suspect"],
)
def test_a_message_without_a_key_has_failed_and_is_alone_as_a_suspect_one(key, suspect) -> None:
    lane = lane_of(key=lambda message: message.routing_key if message.tag != 2 else key(message))
    messages = [Delivery(b"", letter, queue="q", tag=tag) for tag, letter in enumerate("abc", 1)]
    messages[1].suspect = suspect
    add(lane, *messages)
    first = lane.take()
    assert lane.take() is None
    lane.finish(first, "channel")
    alone = lane.take()
    assert (alone.tag, type(alone.key_error) in {KeyError, TypeError}) == (2, not suspect)
    assert lane.take() is None
    assert lane.finish(alone, "channel") == 1
    assert lane.take().tag == 3


@pytest.mark.parametrize(
    ("items", "key", "most"),  # decoded, the lists of all messages take 1 MB, and 150 kB
    [(12_500, lambda message: len(message.headers["h"]), 312_500), (1_900, routing_key, 50_000)],
)
def test_messages_that_wait_keep_no_headers_decoded_for_nothing(items, key, most) -> None:
    lane = lane_of(key=key)
    array = b"A" + struct.pack(">I", 2 * items) + b"t\0" * items
    encoded = struct.pack(">HI", 1 << 13, len(array) + 2) + b"\1h" + array
    tracemalloc.start()
    try:
        for tag in range(1, 11):
            add(lane, Delivery(b"", "k", queue="q", encoded=encoded, tag=tag))
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < most
    message = lane.take()
    assert message.key == key(message)
    assert len(message.headers["h"]) == items


def test_a_suspect_message_waits_until_the_handler_fails_that_has_it_from_the_last_channel() -> None:
    lane = lane_of("a")
    first, _ = lane.take(), lane.detach()
    lane.attach("another", 1)
    suspect = Delivery(b"", "a", queue="q", tag=1, redelivered=True)
    suspect.suspect = True
    assert add(lane, suspect) == 0
    assert lane.pause(first, "channel") == (False, True)
    assert lane.take() is suspect


def test_a_lane_shows_what_is_in_hand_and_what_has_failed() -> None:
    lane = lane_of("poison", "a", "poison", "b")
    message = lane.take()
    message.attempt += 1
    lane.pause(message, "channel")
    lane.finish(lane.take(), "channel")
    assert Counter(each.routing_key for each in lane.unfinished) == {"poison": 1, "b": 1}
    status = lane.status(0.0)
    assert (status["waiting"], status["failures"], status["handled"]) == (3, 1, 1)
    json.dumps(status)


def test_a_handler_that_hangs_shows_its_age_after_a_reconnect_although_later_messages_have_lower_tags() -> (
    None
):
    lane = lane_of("handled", "short", "hangs")
    lane.finish(lane.take(), "channel")
    short, hanging = lane.take(), lane.take()
    assert lane.status(0.0)["oldest"] == 0.0
    for channel, now in (("second", 10.0), ("third", 20.0)):
        lane.detach()
        lane.attach(channel, 1)
        deliver(lane, "other")
        lane.sample(now)
        assert lane.status(now)["oldest"] == now
    lane.finish(short, "channel")
    assert lane.status(20.0)["oldest"] == 0.0
    assert lane.status(50.0)["oldest"] == 30.0
    lane.finish(hanging, "channel")
    assert lane.status(60.0)["oldest"] == 0.0


# ---- what the key is


HASH = {"type": CONSISTENT_HASH}


@pytest.mark.parametrize(
    ("arguments", "message", "key"),
    [
        ({}, Message(b"", "k"), "k"),
        ({"hash-header": "tenant"}, Message(b"", "k", headers={"tenant": "acme"}), "acme"),
        ({"hash-header": "tenant"}, Message(b"", "k", headers={"tenant": [1, 2]}), "[1, 2]"),
        ({"hash-header": "tenant"}, Message(b"", "k", headers={"tenant": Decimal("NaN")}), "Decimal('NaN')"),
        ({"hash-header": "tenant"}, Message(b"", "k"), "None"),
        ({"hash-property": "message_id"}, Message(b"", "k", message_id="m-1"), "m-1"),
        ({"hash-property": "message_id"}, Message(b"", "k"), None),
    ],
)
def test_the_key_is_what_the_exchange_hashes(arguments, message, key) -> None:
    topology = Topology("/", exchanges=(Exchange("orders", CONSISTENT_HASH, arguments=arguments),))
    assert key_of(topology, "orders")(message) == key


def behind(*arguments: dict[str, str]) -> Topology:
    rings = [Exchange(f"ring-{at}", CONSISTENT_HASH, arguments=each) for at, each in enumerate(arguments)]
    bindings = [Binding("orders", ToExchange(each.name), "") for each in rings]
    return Topology("/", exchanges=(Exchange("orders", "fanout"), *rings), bindings=tuple(bindings))


def test_the_key_is_what_the_hash_exchange_behind_another_one_hashes() -> None:
    message = Message(b"", "k", headers={"tenant": "acme"})
    assert key_of(behind({"hash-header": "tenant"}), "orders")(message) == "acme"
    assert key_of(behind(), "orders")(message) == "k"
    with pytest.raises(InvalidValue, match="leads to exchanges that hash different parts of a message"):
        key_of(behind({"hash-header": "tenant"}, {}), "orders")
