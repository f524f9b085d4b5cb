"""Which keys the canaries of a watch have, and what becomes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rabbit_chx import ConsistentHashExchange
from rabbit_chx.topology import (
    Binding,
    Exchange,
    Observed,
    Queue,
    Release,
    Ring,
    Router,
    Slots,
    Store,
    Topology,
    assume_applied,
)
from rabbit_chx.watch import Key, News, Snapshot
from rabbit_chx.watch.canary import MOST, Canaries, find_keys
from rabbit_chx.watch.ring_check import check_ring
from tests.watching import QUEUES, interval, observed

ORDERS = "orders"


def keys_of(
    now: Observed, wanted: Topology | None = None, *, first: Observed | None = None
) -> tuple[Key, ...]:
    snapshot = Snapshot(0.0, ORDERS, observed=now, first=first or now)
    return find_keys(snapshot, wanted, check_ring(snapshot, wanted).exact)


def hashing(now: Observed, **arguments: str) -> Observed:
    """The same with an exchange that hashes a header or a property."""
    exchange = Exchange(ORDERS, "x-consistent-hash", arguments=arguments)
    return replace(now, topology=replace(now.topology, exchanges=(exchange,)))


def unknown(now: Observed) -> Observed:
    """The same with an unknown order of buckets."""
    rings = {name: replace(ring, runs=None, why_unknown="a restart") for name, ring in now.rings.items()}
    return replace(now, rings=rings)


# ---- keys


@pytest.mark.parametrize("count", [1, 4, 250])
def test_each_queue_gets_the_key_that_the_mirror_routes_to_it(count) -> None:
    queues = [f"q{number}" for number in range(count)]
    mirror = ConsistentHashExchange(dict.fromkeys(queues, 1))
    found = keys_of(observed(queues))
    assert sorted(str(key.queue) for key in found) == sorted(queues)
    for key in found:
        assert key.expected == {mirror.route(str(key))} == {key.queue}


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"hash-header": "tenant"}, "headers"),
        ({"hash-property": "message_id"}, "message_id"),
        ({"hash-property": "correlation_id"}, "correlation_id"),
        ({"hash-property": "timestamp"}, "timestamp"),
    ],
)
def test_the_key_is_where_the_exchange_looks_for_it(arguments, part) -> None:
    now = hashing(observed(QUEUES), **arguments)
    mirror = ConsistentHashExchange(
        now.rings[ORDERS], **{name.replace("-", "_"): value for name, value in arguments.items()}
    )
    found = keys_of(now)
    assert {key.queue for key in found} == set(QUEUES)
    for key in found:
        value = key.parts["headers"] if part == "headers" else key.parts["properties"][part]
        assert mirror.route(**{part: value}) == key.queue


def test_with_a_file_the_expected_queue_is_that_of_the_file() -> None:
    wanted = observed(QUEUES).topology
    mirror = ConsistentHashExchange(dict.fromkeys(QUEUES, 1))
    for now in (observed(reversed(QUEUES)), unknown(observed(reversed(QUEUES)))):
        found = keys_of(now, wanted)
        assert {key.queue for key in found} == set(QUEUES)
        assert all(key.expected == {mirror.route(str(key))} for key in found)
    assert any(key.expected != {key.queue} for key in keys_of(observed(reversed(QUEUES)), wanted))


def test_each_queue_of_the_file_has_a_key_even_if_no_message_reaches_it() -> None:
    wanted = observed(QUEUES).topology
    for bound in (QUEUES[1:], ()):
        found = keys_of(observed(bound), wanted)
        assert {key.responsible for key in found} == set(QUEUES)
        assert {key.queue for key in found} == set(bound or QUEUES)


def test_without_a_file_the_expected_queue_is_that_of_the_start() -> None:
    now = observed(reversed(QUEUES))
    mirror = ConsistentHashExchange(dict.fromkeys(QUEUES, 1))
    found = keys_of(now, first=observed(QUEUES))
    assert all(key.expected == {mirror.route(str(key))} for key in found)
    assert all(ConsistentHashExchange(now.rings[ORDERS]).route(str(key)) == key.queue for key in found)


def test_keys_of_unknown_routes_are_more_than_the_queues_and_have_no_prediction() -> None:
    found = keys_of(unknown(observed(QUEUES)))
    assert len({str(key) for key in found}) == 3 * len(QUEUES)
    assert {(key.queue, key.expected) for key in found} == {(None, None)}
    assert len(keys_of(unknown(observed(f"q{number}" for number in range(1000))))) == MOST


@pytest.mark.parametrize("change", [lambda now: now, unknown])
def test_no_canary_is_sent_to_a_stream(change) -> None:
    now = observed(QUEUES)
    streams = [
        replace(queue, type="stream") if queue.name == "q0" else queue for queue in now.topology.queues
    ]
    now = replace(now, topology=replace(now.topology, queues=tuple(streams)))
    expected = set(QUEUES[1:]) if change(now) is now else set()
    assert {key.queue for key in keys_of(change(now))} == expected


@pytest.mark.timeout(60)
def test_a_slot_of_the_file_may_lead_to_any_of_its_queues(monkeypatch) -> None:
    monkeypatch.setattr(
        "rabbit_chx.watch.canary._MOST_TRIED", 10**9
    )  # the search ends when all queues have a key
    slots = Slots(ORDERS, 16, {"q0": 1, "q1": 1})
    wanted = Topology("/", (Exchange(ORDERS, "x-modulus-hash"),), (Queue("q0"), Queue("q1")), slots=(slots,))
    now = assume_applied(wanted)
    found = keys_of(now, wanted)
    assert {key.queue for key in found} == {"q0", "q1"}
    assert {key.expected for key in found} == {frozenset({"q0", "q1"})}
    route = Router(now.topology, release=now.release, rings=now.rings).route
    assert all(route(ORDERS, str(key)) == (key.queue,) for key in found)
    assert all(key.expected == {key.queue} for key in keys_of(now))


def test_a_slot_without_a_queue_gets_a_canary() -> None:
    """A key that goes nowhere belongs to a queue of the start, or to any queue of the file."""
    slots = Slots(ORDERS, 16, {"q0": 1, "q1": 1})
    wanted = Topology("/", (Exchange(ORDERS, "x-modulus-hash"),), (Queue("q0"), Queue("q1")), slots=(slots,))
    first = assume_applied(wanted)
    without = tuple(bound for bound in first.topology.bindings if bound.destination != "q1")
    now = replace(
        first,
        topology=replace(first.topology, bindings=without, queues=(Queue("q0"),)),
        rings={name: ring if ring.destinations != ("q1",) else Ring() for name, ring in first.rings.items()},
    )
    route = Router(now.topology, release=now.release, rings=now.rings).route
    for found in (keys_of(now, first=first), keys_of(now, wanted)):
        lost = [key for key in found if route(ORDERS, str(key)) == ()]
        assert len(lost) == 1
        assert "q1" in (lost[0].expected or ())


def test_an_exchange_that_does_not_exist_has_no_keys() -> None:
    gone = observed(QUEUES)
    gone = replace(gone, topology=Topology("/"), rings={})
    assert keys_of(gone, first=observed(QUEUES)) == ()
    assert find_keys(Snapshot(0.0, ORDERS), None, {}) == ()


def test_the_route_of_a_modulus_exchange_on_khepri_before_4_3_is_not_judged() -> None:
    exchange = Exchange(ORDERS, "x-modulus-hash")
    topology = Topology(
        "/", (exchange,), (Queue("q0"), Queue("q1")), tuple(Binding(ORDERS, each) for each in ("q0", "q1"))
    )
    for store, expected in ((Store.KHEPRI, {None}), (Store.MNESIA, {"q0", "q1"})):
        now = Observed(topology, Release.parse("4.2", store=store))
        assert {key.queue for key in keys_of(now)} == expected


# ---- results

KEYS = [
    Key(number, {"routing_key": f"canary-{number}"}, frozenset({f"q{number}"}), f"q{number}")
    for number in range(3)
]


class Sent:
    """Canaries of which one batch is sent in each interval."""

    def __init__(self, keys=KEYS) -> None:
        self.canaries = Canaries()
        self.canaries.use(keys)
        self.newest = self.canaries.next()

    def settle(self, reports=(), returned=(), **news):
        """End an interval; reports name the number of the canary and the queue."""
        batch, self.newest = self.newest, self.canaries.next()
        found = News(
            [each.id for each in batch],
            [(batch[number].id, queue, seconds) for number, queue, seconds in reports],
            [batch[number].id for number in returned],
            **news,
        )
        self.batch = batch
        return self.canaries.settle(found, ORDERS)


def names(results):
    return [(problem.name, problem.queue) for problem in results.problems]


def test_canaries_in_the_queues_of_the_mirror_are_as_expected() -> None:
    results = Sent().settle([(0, "q0", 0.1), (1, "q1", 0.3), (2, "q2", 0.2)])
    assert results.as_dict() == {
        "sent": 3,
        "as_expected": 3,
        "misrouted": 0,
        "unroutable": 0,
        "unanswered": 0,
        "not_judged": 0,
        "longest_seconds": 0.3,
        "text": "3 sent, 3 as expected, longest round trip 0.300 s",
    }
    assert not results.problems


def test_a_canary_in_another_queue_is_misrouted_and_a_returned_one_unroutable() -> None:
    results = Sent().settle([(0, "q1", 0.1), (1, "q1", 0.1)], returned=[2])
    assert (results.as_expected, results.misrouted, results.unroutable) == (1, 1, 1)
    assert names(results) == [("canary-misrouted", "q0"), ("canary-unroutable", "q2")]
    assert (
        str(results.problems[0])
        == "queue 'q0': its canary 'canary-0' arrived in queue 'q1' [canary-misrouted]"
    )


def test_a_canary_is_unanswered_at_the_end_of_the_interval_after_the_one_in_which_it_was_sent() -> None:
    sent = Sent()
    assert sent.settle([(0, "q0", 0.1), (1, "q1", 0.1)]).unanswered == 0
    late = sent.batch[2].id
    results = sent.settle([(0, "q0", 0.1), (1, "q1", 0.1), (2, "q2", 0.1)])
    assert results.unanswered == 1
    assert not results.problems  # a newer canary of the same queue has been answered
    batch = sent.newest
    results = sent.canaries.settle(News([each.id for each in batch], [(late, "q2", 30.0)]), ORDERS)
    assert (results.as_expected, results.longest_seconds) == (0, None)


def test_a_queue_without_answers_has_a_problem_until_it_answers() -> None:
    sent = Sent()
    both = [(0, "q0", 0.1), (1, "q1", 0.1)]
    assert names(sent.settle(both)) == []
    for _ in range(3):
        results = sent.settle(both)
        assert results.unanswered == 1
        assert names(results) == [("canary-unanswered", "q2")]
    assert names(sent.settle([*both, (2, "q2", 0.1)])) == []


def test_a_late_answer_within_the_next_interval_counts() -> None:
    sent = Sent(KEYS[:1])
    sent.settle()
    late = sent.batch[0].id
    results = sent.canaries.settle(News([], [(late, "q0", 12.0)]), ORDERS)
    assert (results.as_expected, results.unanswered, results.longest_seconds) == (1, 0, 12.0)


def test_a_second_report_of_a_canary_does_not_count() -> None:
    results = Sent().settle([(0, "q0", 0.1), (0, "q1", 0.1)])
    assert (results.as_expected, results.misrouted) == (1, 0)


def test_a_lost_connection_is_a_problem_and_says_nothing_about_queues() -> None:
    sent = Sent()
    assert names(sent.settle([(0, "q1", 0.1)])) == [("canary-misrouted", "q0")]
    results = sent.settle(failure="the connection was lost")
    assert names(results) == [("canary-not-sent", None)]
    assert results.unanswered == 0
    assert names(sent.settle([(0, "q0", 0.1), (1, "q1", 0.1), (2, "q2", 0.1)])) == []


def test_keys_without_a_prediction_are_not_judged_and_share_one_problem() -> None:
    keys = [Key(number, {"routing_key": f"canary-{number}"}) for number in range(4)]
    sent = Sent(keys)
    results = sent.settle([(0, "q7", 0.1)], returned=[1])
    assert (results.not_judged, results.misrouted) == (1, 0)
    results = sent.settle()
    unanswered = "2 of 4 canaries: no consumer reported them: the consumer is slow or absent, or does not report canaries"
    assert (f"exchange '{ORDERS}'", unanswered) in [(each.where, each.message) for each in results.problems]


def test_many_queues_take_turns_and_keep_their_newest_result() -> None:
    keys = [
        Key(number, {"routing_key": f"canary-{number}"}, frozenset({f"q{number}"}), f"q{number}")
        for number in range(250)
    ]
    canaries = Canaries()
    canaries.use(keys)
    seen = []
    for _ in range(5):
        batch = canaries.next()
        assert len(batch) == MOST
        seen += [each.key.number for each in batch]
        reports = [(each.id, "q0", 0.1) for each in batch]
        results = canaries.settle(News([each.id for each in batch], reports), ORDERS)
    assert seen == [*range(250), *range(250)]
    assert len(results.problems) == 249
    canaries.use(keys[:2])
    assert len(canaries.settle(News(), ORDERS).problems) == 1


def test_nothing_is_sent_without_keys() -> None:
    canaries = Canaries()
    assert canaries.next() == []
    assert canaries.settle(News(), ORDERS).as_dict()["sent"] == 0


def test_an_interval_has_the_problems_and_marks_of_its_canaries() -> None:
    results = Sent().settle([(0, "q1", 0.1), (1, "q1", 0.1)], returned=[2])
    found = interval(states={"q0": {"consumers": 0}}).with_canaries(results)
    assert [problem.name for problem in found.problems] == [
        "canary-unroutable",
        "canary-misrouted",
        "no-consumer",
    ]
    assert {row.queue: row.marks for row in found.rows if row.marks} == {
        "q0": ("canary-misrouted", "no-consumer"),
        "q2": ("canary-unroutable",),
    }
    assert found.as_dict()["canaries"] == results.as_dict()
    assert interval().as_dict()["canaries"] is None
