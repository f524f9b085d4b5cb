"""Straight to the queues: the decision and its refusals, the added header, and the books; no broker."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pika
import pytest

from rabbit_chx import ConsistentHashExchange, ModulusHashExchange, Release, Ring, ToExchange
from rabbit_chx.broker.claims import is_lease_of
from rabbit_chx.broker.management import Bound, Exchange, Policy, Queue
from rabbit_chx.errors import BrokerWouldFail, InvalidValue
from rabbit_chx.fields import Field
from rabbit_chx.publishing.account import Outcome
from rabbit_chx.publishing.direct import DirectRoute, Facts, Refusal, decide
from rabbit_chx.publishing.direct_account import DirectAccount
from rabbit_chx.publishing.direct_wire import KEY_HEADER, add_key, cut
from rabbit_chx.publishing.frames import Message, encode_properties
from rabbit_chx.releases import Store

KEYS = [b"customer-%d" % number for number in range(300)]
PLAIN = encode_properties({}, frame_max=131_072)


def message(row: int, *, exchange: bytes = b"top", properties: bytes = PLAIN) -> Message:
    return Message(row, exchange, KEYS[row], properties, b"body")


MESSAGES = [message(row) for row in range(len(KEYS))]


def exchange(name: str, kind: str, *, policy: str | None = None, internal: bool = False, **arguments):
    arguments = {k.replace("_", "-"): v for k, v in arguments.items()}
    return Exchange(name, kind, internal=internal, arguments=arguments, policy=policy)


def slotted(**changes) -> Facts:
    """Slots under a modulus, on 4.3."""
    slots = {
        f"s{number}": (
            exchange(f"s{number}", "x-consistent-hash"),
            [Bound(f"s{number}", f"q{number % 2}", "1")],
        )
        for number in range(8)
    }
    facts = Facts(
        release="4.3.6",
        store=Store.KHEPRI,
        top=exchange("top", "x-modulus-hash"),
        bindings=[Bound("top", ToExchange(name), "1") for name in slots],
        slots=slots,
        queues={f"q{number}": Queue(f"q{number}") for number in range(2)},
        policies=[],
    )
    return replace(facts, **changes)


def ringed(**changes) -> Facts:
    ring = Ring.of({"q0": 2, "q1": 1})
    facts = slotted(
        top=exchange("top", "x-consistent-hash"),
        bindings=[Bound("top", "q1", "1"), Bound("top", "q0", "2")],
        slots={},
        ring=ring,
    )
    return replace(facts, **changes)


RING = Ring.of({"q0": 2, "q1": 1})


def hashing(ring=RING, release="4.3.6", **arguments) -> Facts:
    return ringed(top=exchange("top", "x-consistent-hash", **arguments), ring=ring, release=release)


def test_slots_under_a_modulus_lead_to_their_queues() -> None:
    route = decide(slotted())
    assert isinstance(route, DirectRoute)
    mirror = ModulusHashExchange([ToExchange(f"s{number}") for number in range(8)])
    expected = [b"q%d" % (int(mirror.route(key).name[1:]) % 2) for key in KEYS]
    assert route.queues(MESSAGES) == expected
    assert [route.queues([one])[0] for one in MESSAGES] == expected
    assert set(expected) == {b"q0", b"q1"}
    assert route.queues([]) == []


def test_a_ring_leads_to_its_queues() -> None:
    route = decide(ringed())
    assert isinstance(route, DirectRoute)
    mirror = ConsistentHashExchange({"q0": 2, "q1": 1})
    assert route.queues(MESSAGES) == [mirror.route(key).encode() for key in KEYS]


def test_how_bindings_are_listed_makes_no_difference_and_where_they_lead_does() -> None:
    facts = slotted()
    assert decide(facts) == decide(replace(facts, bindings=facts.bindings[::-1]))
    slot, _ = facts.slots["s3"]
    moved = facts.slots | {"s3": (slot, [Bound("s3", "q0", "1")])}
    assert decide(replace(facts, slots=moved)) != decide(facts)
    assert decide(ringed(ring=Ring.of({"q1": 1, "q0": 2}))) != decide(ringed())
    assert decide(replace(facts, release="4.3.5")) != decide(facts)


def test_before_4_3_the_order_is_known_on_mnesia_alone() -> None:
    for release in ("3.10.8", "3.13.7", "4.0.5"):
        assert isinstance(decide(slotted(release=release, store=Store.MNESIA)), DirectRoute)
    assert "no rule" in str(decide(slotted(release="4.0.5", store=Store.KHEPRI)))
    assert "feature flags" in str(decide(slotted(release="4.0.5", store=None)))


_SLOTS = slotted().slots
_SLOT = _SLOTS["s0"][0]
_DEAD = {"x-dead-letter-exchange": ""}


def with_slot(slot=_SLOT, *destinations, **changes) -> Facts:
    bindings = [Bound("s0", destination, "1") for destination in destinations or ("q0",)]
    return slotted(slots=_SLOTS | {"s0": (slot, bindings)}, **changes)


def with_queue(arguments=None, effective=None, *policies) -> Facts:
    return slotted(
        queues={
            "q0": Queue("q0", arguments=arguments or {}, effective_policy=effective or {}),
            "q1": Queue("q1"),
        },
        policies=policies,
    )


ALTERNATE = Policy("p", "^s", "exchanges", {"alternate-exchange": "a"})
REFUSED = {
    "unknown release": (slotted(release="9.9.9"), "the broker release"),
    "no release": (slotted(release=""), "the broker release"),
    "another type": (slotted(top=exchange("top", "topic")), "of type topic"),
    "internal": (slotted(top=exchange("top", "x-modulus-hash", internal=True)), "is internal"),
    "no binding": (slotted(bindings=[]), "no binding"),
    "twice": (slotted(bindings=[Bound("top", "q0", "1", {"n": n}) for n in (1, 2)]), "twice"),
    "alternate": (slotted(top=exchange("top", "x-modulus-hash", alternate_exchange="a")), "'top' has an alt"),
    "alternate by policy": (
        slotted(top=exchange("top", "x-modulus-hash", policy="p"), policies=[ALTERNATE]),
        "policy 'p' gives 'top'",
    ),
    "unreadable policy": (slotted(top=exchange("top", "x-modulus-hash", policy="x")), "cannot be read"),
    "no slot": (with_slot(exchange("s0", "fanout")), "of type fanout"),
    "two queues": (with_slot(_SLOT, "q0", "q1"), "2 bindings"),
    "two bindings of a queue": (with_slot(_SLOT, "q0", "q0"), "2 bindings"),
    "empty slot": (slotted(slots=_SLOTS | {"s0": (_SLOT, [])}), "0 bindings"),
    "slot to an exchange": (with_slot(_SLOT, ToExchange("e")), "leads to exchange e"),
    "slot gone": (slotted(slots={}), "was gone"),
    "queue gone": (slotted(queues={"q0": Queue("q0")}), "'q1' was gone"),
    "dead letters": (with_queue(_DEAD), "dead-letter"),
    "a key by policy alone, which may lapse": (with_queue(_DEAD, {"dead-letter-routing-key": "k"}), "dead-letter"),
    "dead letters by policy": (with_queue(None, {"dead-letter-exchange": "d"}), "dead-letter"),
    "dead letters by a policy not yet shown": (
        with_queue(None, None, Policy("p", "^q0$", "queues", {"dead-letter-exchange": "d"})),
        "a policy may give it",
    ),
    "a pattern of another dialect": (
        with_queue(None, None, Policy("p", r"\Ax", "all", {"dead-letter-exchange": "d"})),
        "a policy may give it",
    ),
    "a pattern that is none": (
        with_queue(None, None, Policy("p", "(", "all", {"dead-letter-exchange": "d"})),
        "a policy may give it",
    ),
    "no ring": (ringed(ring=None), "not visible"),
    "unknown ring": (ringed(ring=replace(Ring.of({"q0": 2, "q1": 1}), runs=None, why_unknown="x")), ""),
    "another ring": (ringed(ring=Ring.of({"q0": 1, "q1": 1})), "does not agree"),
    "a ring of others": (ringed(ring=Ring.of({"q0": 2, "q2": 1})), "does not agree"),
    "a dead binding": (ringed(bindings=[Bound("top", "q0", w) for w in "12"]), "dead"),
    "a header that the broker may set": (hashing(hash_header="x-routed-by"), "'x-routed-by'"),
    "a property that the broker may set": (hashing(hash_property="timestamp"), "'timestamp'"),
    "a header without a name": (hashing(hash_header=""), "hash_header"),
    "a property of no hash": (hashing(hash_property="app_id"), "hash_property"),
    "no ring over a header": (hashing(hash_header="h", ring=None), "not visible"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_wholly_known_is_refused(case) -> None:
    facts, reason = REFUSED[case]
    decision = decide(facts)
    assert isinstance(decision, Refusal)
    assert reason in str(decision)


@pytest.mark.parametrize(
    "facts",
    [
        with_queue(_DEAD | {"x-dead-letter-routing-key": ""}),
        with_queue(None, None, Policy("p", "^q0$", "exchanges", {"dead-letter-exchange": "d"})),
        with_queue(None, None, Policy("p", "^other", "all", {"dead-letter-exchange": "d"})),
        slotted(
            top=exchange("top", "x-modulus-hash", policy="p"), policies=[Policy("p", "^t", "exchanges", {})]
        ),
        with_slot(exchange("s0", "x-consistent-hash", alternate_exchange="a")),
        with_slot(exchange("s0", "x-consistent-hash", policy="p"), policies=[ALTERNATE]),
    ],
)
def test_what_changes_no_way_is_fine(facts) -> None:
    assert isinstance(decide(facts), DirectRoute)


# -- what is hashed --------------------------------------------------------------------------------

VALUES = [
    *("", "acme", "é🐇", b"acme", b"\xff", True, False, None, Decimal("1.50"), Decimal(7)),
    *(0, 5, -5, 2**31 - 1, 2**31, -(2**63), datetime(2024, 5, 1, 12, 30, tzinfo=UTC)),
    *(["a", 1, [None]], [b"x", {"k": 2**40}], {"k": "v", "l": [True]}),
]


def with_properties(**properties) -> list[Message]:
    """One message for each value of a column, each with some other properties and headers around it."""
    ((name, values),) = properties.items()
    rows = []
    for row, value in enumerate(values):
        others = {"content_type": "t", "priority": 1, "reply_to": "r"} if row % 2 else {}
        encoded = encode_properties({**others, name: value}, frame_max=131_072)
        rows.append(Message(row, b"top", b"", encoded, b""))
    return rows


@pytest.mark.parametrize("release", ["3.10.8", "4.0.5", "4.3.6"])
def test_a_hashed_header_is_read_off_the_frames_with_its_type(release) -> None:
    headers = [{"before": [1, "tenant"], "tenant": value, "after": 7} for value in VALUES]
    headers += [{"tenant": f"t{number}"} for number in range(100)] + [{"other": 1}]
    mirror = ConsistentHashExchange({"q0": 2, "q1": 1}, release=release, hash_header="tenant")
    expected = [mirror.route(headers=one, client="pika").encode() for one in headers]
    assert set(expected) == {b"q0", b"q1"}
    # Whoever reads a ring may forget to say of which release.
    for ring in (RING, Ring.of({"q0": 2, "q1": 1}, release=release)):
        route = decide(hashing(ring, release, hash_header="tenant"))
        assert route.queues(with_properties(headers=headers)) == expected
        assert route.queues([message(0), *with_properties(headers=[{}])]) == expected[-1:] * 2


def test_what_pika_read_is_hashed_with_the_type_that_it_writes() -> None:
    wide = pika.compat.long(5)  # a whole number of 64 bits on the wire, whatever its size
    mirror = ConsistentHashExchange({f"q{n}": 1 for n in range(50)}, release="3.10.8", hash_header="h")
    wanted = [mirror.route(headers={"h": field}) for field in (Field("l", 5), Field("I", 5))]
    assert wanted[0] != wanted[1]
    ring = mirror.ring
    facts = hashing(ring, "3.10.8", hash_header="h")
    facts = replace(
        facts,
        bindings=[Bound("top", f"q{n}", "1") for n in range(50)],
        queues={f"q{n}": Queue(f"q{n}") for n in range(50)},
    )
    messages = with_properties(headers=[{"h": wide}, {"h": 5}])
    assert decide(facts).queues(messages) == [queue.encode() for queue in wanted]


@pytest.mark.parametrize("name", ["message_id", "correlation_id"])
def test_a_hashed_property_is_read_off_the_frames(name) -> None:
    values = [f"m{number}" for number in range(100)] + ["", "é", None]
    mirror = ConsistentHashExchange({"q0": 2, "q1": 1}, hash_property=name)
    expected = [mirror.route(**{name: value}).encode() for value in values]
    assert set(expected) == {b"q0", b"q1"}
    assert decide(hashing(hash_property=name)).queues(with_properties(**{name: values})) == expected


def test_what_is_hashed_tells_two_routes_apart() -> None:
    routes = [decide(hashing(hash_header="a")), decide(hashing(hash_header="b")), decide(ringed())]
    routes.append(decide(hashing(hash_property="message_id")))
    assert all(isinstance(route, DirectRoute) for route in routes)
    assert sum(one == other for one in routes for other in routes) == len(routes)


def test_a_header_leads_through_slots_that_are_exchanges() -> None:
    slots = [ToExchange(f"s{number}") for number in range(8)]
    top = exchange("top", "x-consistent-hash", hash_header="h")
    route = decide(slotted(top=top, ring=Ring.of(slots)))
    assert isinstance(route, DirectRoute)
    mirror = ConsistentHashExchange(slots, hash_header="h")
    headers = [{"h": f"c{number}"} for number in range(100)]
    expected = [b"q%d" % (int(mirror.route(headers=one).name[1:]) % 2) for one in headers]
    assert route.queues(with_properties(headers=headers)) == expected


def test_a_message_on_which_the_broker_fails_is_refused_with_its_row() -> None:
    route = decide(hashing(release="3.13.2", hash_header="h"))
    with pytest.raises(BrokerWouldFail, match=r"row 1: .*3\.13\.7"):
        route.queues(with_properties(headers=[{"h": "x"}, {"i": "x"}]))
    with pytest.raises(BrokerWouldFail, match=r"row 2: .*empty array"):
        route.queues(with_properties(headers=[{"h": "x"}, {"h": [1]}, {"h": []}]))


def test_a_header_that_is_there_twice_is_refused_with_its_row() -> None:
    twice = encode_properties({"headers": {"h": "x", b"h": "y"}}, frame_max=131_072)
    assert twice.count(b"\x01hS") == 2
    with pytest.raises(InvalidValue, match=r"row 3 .*'h' 2 times"):
        decide(hashing(hash_header="h")).queues([message(3, properties=twice)])


# -- the header ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"headers": {"a": 1, "b": ["x"]}},
        {"content_type": "text/plain", "content_encoding": "gzip", "headers": {}, "message_id": "m"},
        {"content_encoding": "", "priority": 3, "timestamp": 7, "app_id": "a"},
    ],
)
@pytest.mark.parametrize("key", [b"", b"customer-42", b"x" * 255])
def test_the_key_joins_the_headers_and_all_else_stays(properties, key) -> None:
    plain = encode_properties(properties, frame_max=131_072)
    decoded, original = pika.BasicProperties(), pika.BasicProperties()
    decoded.decode(add_key(cut(plain), key))
    original.decode(plain)
    original.headers = {**(original.headers or {}), KEY_HEADER: key.decode()}
    assert decoded == original


# -- the books -------------------------------------------------------------------------------------


@pytest.fixture
def account() -> DirectAccount:
    account = DirectAccount(most=1_000, most_bytes=1_000_000, on_failure=None)
    route = decide(slotted())
    assert isinstance(route, DirectRoute)
    account.go_straight(route, b"top", frame_max=4_096)
    return account


def send(account: DirectAccount, *messages: Message) -> list[Message]:
    account.take_in(messages, lambda: None)
    return account.to_send(1_000, 1_000_000)


def test_messages_leave_for_their_queues_and_others_for_their_exchange(account) -> None:
    own, other = send(account, message(0), message(1, exchange=b"other"))
    assert (own.exchange, own.routing_key) == (b"", decide(slotted()).queues([message(0)])[0])
    assert (other.exchange, other.routing_key, other.properties) == (b"other", KEYS[1], PLAIN)


def test_a_message_without_room_for_the_header_goes_through_the_exchange(account) -> None:
    full = encode_properties({"headers": {"h": "x" * 4_040}}, frame_max=4_096)
    (sent,) = send(account, message(0, properties=full))
    assert (sent.exchange, sent.routing_key, sent.properties) == (b"top", KEYS[0], full)


def test_doubt_begins_at_the_first_message_without_an_outcome(account) -> None:
    assert account.first_in_doubt() == 0
    sent = send(account, *(message(row) for row in range(10)))
    account.settle(sent[:4] + sent[5:], Outcome.CONFIRMED)
    assert account.first_in_doubt() == 4
    account.settle(sent[4:5], Outcome.CONFIRMED)
    assert account.first_in_doubt() == 10
    assert account.go_through_exchange(10) == range(10, 10)


def test_after_the_end_everything_leaves_through_the_exchange(account) -> None:
    account.take_in([message(row) for row in range(6)], lambda: None)
    left = account.to_send(3, 1_000_000)
    assert all(one.exchange == b"" for one in left)
    assert account.go_through_exchange(1) == range(1, 3)
    account.put_back(left, first=True)
    again = account.to_send(10, 1_000_000)
    assert [(one.row, one.exchange, one.routing_key) for one in again] == [
        (row, b"top", KEYS[row]) for row in range(6)
    ]
    assert all(one.properties == PLAIN for one in again)
    (later,) = send(account, message(6))
    assert later.exchange == b"top"
    assert not account.some_in_doubt


def test_a_message_that_leaves_twice_is_turned_once(account) -> None:
    (sent,) = send(account, message(0))
    properties = sent.properties
    account.put_back([sent], first=True)
    (again,) = account.to_send(1, 1_000)
    assert again.properties == properties
    assert not account.look.is_set()
    again.verdict = Outcome.RETURNED
    account.put_back([again], first=False)
    assert account.look.is_set()


def test_what_a_queue_gives_back_goes_through_the_exchange_and_what_it_rejects_straight(account) -> None:
    returned, rejected = send(account, message(0), message(1))
    returned.verdict, rejected.verdict = Outcome.RETURNED, Outcome.REJECTED
    account.put_back([returned, rejected], first=False)
    again = account.to_send(10, 1_000)
    assert [(one.exchange, one.routing_key) for one in again] == [
        (b"top", KEYS[0]),
        (b"", decide(slotted()).queues([message(1)])[0]),
    ]
    assert again[0].properties == PLAIN
    assert account.first_in_doubt() == 1


def test_a_failure_names_what_the_caller_gave_and_the_queue(account) -> None:
    (sent,) = send(account, message(0))
    sent.reply = "312 NO_ROUTE"
    account.settle([sent], Outcome.RETURNED)
    (failure,) = account.failures
    assert (failure.exchange, failure.routing_key) == ("top", KEYS[0].decode())
    assert failure.reply.startswith("312 NO_ROUTE (sent straight to queue 'q")


@pytest.mark.parametrize("headers", [{"CC": ["a"]}, {"a": 1, "BCC": []}, {KEY_HEADER: "x"}])
def test_headers_that_route_are_refused(account, headers) -> None:
    encoded = encode_properties({"headers": headers}, frame_max=131_072)
    with pytest.raises(InvalidValue, match="row 1"):
        account.take_in([message(0), message(1, properties=encoded)], lambda: None)
    account.take_in([message(0, exchange=b"other", properties=encoded)], lambda: None)


def test_a_value_that_looks_like_such_a_header_is_none(account) -> None:
    encoded = encode_properties({"headers": {"note": "\x02CC \x03BCC"}}, frame_max=131_072)
    (sent,) = send(account, message(0, properties=encoded))
    assert sent.exchange == b""


def test_leases_are_told_apart_by_their_exchange() -> None:
    assert is_lease_of("rabbit-chx.lease.a.0123456789ab", "a")
    assert is_lease_of("rabbit-chx.lease.a.b.0123456789ab", "a.b")
    assert not is_lease_of("rabbit-chx.lease.a.b.0123456789ab", "a")
    assert not is_lease_of("rabbit-chx.lease.axb.0123456789ab", "a.b")
    assert not is_lease_of("rabbit-chx.lease.a.0123456789ab.more", "a")


def test_unused_release_of_a_ring_does_not_matter_for_routing_keys() -> None:
    old = replace(Ring.of({"q0": 2, "q1": 1}), release=Release.parse("3.10"))
    assert decide(ringed(ring=old)).queues(MESSAGES) == decide(ringed()).queues(MESSAGES)
