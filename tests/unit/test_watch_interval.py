"""The comparison of two snapshots of an exchange: shares, rates, marks, and the state of the ring."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from rabbit_chx.broker.management_rows import QueueState
from rabbit_chx.topology import (
    Binding,
    Exchange,
    Observed,
    Queue,
    Release,
    Ring,
    Store,
    ToExchange,
    Topology,
    loads,
)
from rabbit_chx.topology.planning.what_if import assume_applied
from rabbit_chx.watch.interval import compare
from rabbit_chx.watch.observer import PROBLEMS, Problem, Snapshot
from rabbit_chx.watch.ring_check import _NAMES, check_ring, exact_shares

QUEUES = ("q0", "q1", "q2", "q3")
X = Exchange("orders", "x-consistent-hash")


def topology(*queues: str, bound: tuple[str, ...] | None = None) -> Topology:
    bindings = tuple(Binding("orders", name, "1") for name in (queues if bound is None else bound))
    return Topology("/", (X,), tuple(map(Queue, queues)), bindings)


FILE = topology(*QUEUES)
FIRST = assume_applied(FILE)


def unread(observed: Observed, why: str = "it has not been read") -> Observed:
    rings = {name: Ring(ring.bindings, None, ring.release, why) for name, ring in observed.rings.items()}
    return replace(observed, rings=rings, ring_sources=dict.fromkeys(rings, "unknown"))


def queue(name: str, received: int = 0, **fields: object) -> QueueState:
    usual = {"ready": 0, "unacknowledged": 0, "handled": received, "consumers": 1}
    return QueueState(name, received=received, **{**usual, **fields})


def snapshot(at: float, observed: Observed = FIRST, first: Observed = FIRST, **received: object) -> Snapshot:
    states = {
        name: state if isinstance(state, QueueState) else queue(name, state)
        for name, state in received.items()
    }
    return Snapshot(at, "orders", observed=observed, first=first, queues=states)


EVEN = dict.fromkeys(QUEUES, 1000)
IDLE = queue("q1", 0, consumers=2, single_active=True, active_consumer="")
START = snapshot(0.0, **dict.fromkeys(QUEUES, 0) | {"q1": IDLE})


def problems(interval) -> list[tuple[str, str | None]]:
    return [(problem.name, problem.queue) for problem in interval.problems]


def test_every_kind_of_drift_of_an_exchange_has_a_stable_name() -> None:
    assert set(_NAMES.values()) <= set(PROBLEMS)


def test_rows_have_exact_and_observed_shares_and_rates() -> None:
    interval = compare(START, snapshot(10.0, q0=100, q1=200, q2=300, q3=400))
    assert [row.queue for row in interval.rows] == list(QUEUES)
    assert sum(row.exact for row in interval.rows) == pytest.approx(1.0)
    assert [row.observed for row in interval.rows] == [0.1, 0.2, 0.3, 0.4]
    assert [row.rate_in for row in interval.rows] == [10.0, 20.0, 30.0, 40.0]
    assert interval.totals.received == 1000
    assert interval.totals.rate_out == 100.0
    assert not interval.problems
    assert (interval.ring.status, interval.ring.against) == ("same", "start")


DOWN = Problem("broker-unreachable", "broker", "no management API answers")
FAILED = Snapshot(0.0, "orders", observed=FIRST, first=FIRST, problems=(DOWN,))


@pytest.mark.parametrize("before", [None, FAILED], ids=["the first poll", "the poll after a failure"])
def test_a_poll_without_one_to_compare_it_with_has_no_rates(before: Snapshot | None) -> None:
    interval = compare(before, snapshot(10.0, **EVEN))
    assert {(row.received, row.rate_in, row.observed) for row in interval.rows} == {(None, None, None)}


@pytest.mark.parametrize("fallen", [30, 999])
def test_a_counter_that_fell_says_nothing_of_its_interval_and_makes_no_queue_hot(fallen: int) -> None:
    """After a restart it counts from zero, but where one node of a cluster stops, its part of the sum is missing."""
    interval = compare(snapshot(0.0, **EVEN), snapshot(10.0, **{**EVEN, "q0": fallen, "q1": 1350}))
    assert [row.received for row in interval.rows] == [None, 350, 0, 0]
    assert not interval.problems


def test_a_new_queue_counts_from_zero_and_missing_statistics_make_no_queue_hot() -> None:
    new = snapshot(0.0, q0=0, q1=0, q2=QueueState("q2"), q3=0)
    assert compare(new, snapshot(10.0, **dict.fromkeys(QUEUES, 250))).totals.received == 1000
    waiting = snapshot(10.0, q0=1000, q1=QueueState("q1"), q2=QueueState("q2"), q3=QueueState("q3"))
    assert not compare(new, waiting).problems


def test_missing_statistics_are_unknown() -> None:
    states = {name: QueueState(name) for name in QUEUES}
    interval = compare(START, snapshot(10.0, **states))
    assert not interval.problems
    assert {(row.depth, row.rate_in, row.consumers) for row in interval.rows} == {(None, None, None)}


CASES = {
    "unbound": (
        topology(*QUEUES, bound=("q0", "q1", "q3")),
        EVEN,
        {("unbound-queue", "q2"), ("ring-drifted", None)},
    ),
    "deleted": (
        topology("q0", "q1", "q3"),
        dict.fromkeys(("q0", "q1", "q3"), 1000),
        {("queue-missing", "q2"), ("unbound-queue", "q2"), ("ring-drifted", None)},
    ),
    "deleted and not read again": (FILE, dict.fromkeys(("q0", "q1", "q3"), 1000), {("queue-missing", "q2")}),
    "reordered": (topology("q1", "q0", "q2", "q3"), EVEN, {("ring-drifted", None)}),
    "extra queue": (
        topology(*QUEUES, "q4"),
        EVEN | {"q4": 0},
        {("ring-drifted", "q4"), ("ring-drifted", None)},
    ),
    "no exchange": (
        Topology(),
        EVEN,
        {("exchange-missing", None)} | {("queue-missing", name) for name in QUEUES},
    ),
    "no consumer": (FILE, EVEN | {"q1": queue("q1", 1000, consumers=0)}, {("no-consumer", "q1")}),
    "stream": (FILE, EVEN | {"q1": queue("q1", 1000, consumers=0, is_stream=True)}, set()),
    "no active consumer": (
        FILE,
        EVEN | {"q1": queue("q1", 1000, consumers=2, single_active=True, active_consumer="")},
        {("no-active-consumer", "q1")},
    ),
    "unreported active consumer": (
        FILE,
        EVEN | {"q1": queue("q1", 1000, consumers=2, single_active=True)},
        set(),
    ),
    "active consumer": (
        FILE,
        EVEN | {"q1": queue("q1", 1000, consumers=2, single_active=True, active_consumer="ctag")},
        set(),
    ),
    "hot key": (FILE, EVEN | {"q3": 3000}, {("hot-queue", "q3")}),
    "uneven by chance": (FILE, EVEN | {"q3": 1150}, set()),
    "hot, but too few messages": (FILE, {"q0": 0, "q1": 0, "q2": 0, "q3": 90}, set()),
}


def test_an_exchange_that_led_nowhere_when_the_watch_began_is_a_problem() -> None:
    slots = [Exchange(name, X.type) for name in ("s0", "s1", "s2")]
    slots[2] = replace(slots[2], arguments={"alternate-exchange": "amq.fanout"})
    to_slots = [Binding("orders", ToExchange(each.name), "1") for each in slots]
    lost = Topology("/", (X, *slots), (Queue("q0"),), (*to_slots, Binding("s0", "q0", "1")))
    observed = assume_applied(lost)
    (found,) = check_ring(snapshot(0.0, observed, observed), None).problems
    assert (found.name, found.where) == ("queue-missing", "exchange 's1'")


def test_a_file_that_binds_a_queue_twice_has_no_ring_on_a_release_that_counts_both() -> None:
    twice = replace(FILE, bindings=(*FILE.bindings, Binding("orders", "q0", "2")))
    old = assume_applied(FILE, "3.9.20")
    assert check_ring(snapshot(0.0, old, old), twice).wanted is None
    assert check_ring(snapshot(0.0), twice).wanted.runs == FIRST.rings["orders"].runs


@pytest.mark.parametrize(
    ("queue", "key", "message"),
    [
        ("q4", "1", "weight 1: bound since the watch began, and it takes keys from the others"),
        ("q3", "2", "bound 2 times (weights 1, 2): only the first takes effect"),
    ],
)
def test_without_a_file_the_message_says_what_was_bound_since_the_start(
    queue: str, key: str, message: str
) -> None:
    on_broker = topology(*QUEUES, "q4", bound=QUEUES)
    bound = replace(on_broker, bindings=(*on_broker.bindings, Binding("orders", queue, key)))
    interval = compare(START, snapshot(10.0, assume_applied(bound), **EVEN, q4=0))
    assert message in [one.message for one in interval.problems if one.queue == queue]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("wanted", [None, FILE], ids=["against the start", "against a file"])
def test_problems(case: str, wanted: Topology | None) -> None:
    on_broker, received, expected = CASES[case]
    interval = compare(START, snapshot(10.0, assume_applied(on_broker), **received), wanted)
    assert set(problems(interval)) == expected
    moved = {"unbound-queue", "exchange-missing", "ring-drifted"}
    assert interval.ring.status == ("drifted" if moved & {name for name, _ in expected} else "same")
    marks = {(name, row.queue) for row in interval.rows for name in row.marks}
    assert marks == {(name, queue) for name, queue in expected if queue is not None}


def test_a_frequent_key_is_hot_below_twice_the_share_of_one_of_two_queues() -> None:
    two = topology("q0", "q1")
    observed = assume_applied(two)
    before, after = (
        snapshot(0.0, observed, observed, q0=0, q1=0),
        snapshot(9.0, observed, observed, q0=800, q1=200),
    )
    assert problems(compare(before, after)) == [("hot-queue", "q0")]


def test_an_order_that_was_never_known_is_no_problem_without_a_file() -> None:
    unknown = unread(FIRST)
    quiet = compare(START, snapshot(10.0, unknown, unknown, **EVEN))
    assert not quiet.problems
    assert (quiet.ring.status, quiet.ring.why) == ("unknown", "it has not been read")
    assert {row.exact for row in quiet.rows} == {0.25}
    assert problems(compare(START, snapshot(10.0, unknown, unknown, **EVEN), FILE)) == [
        ("ring-unknown", None)
    ]
    assert problems(compare(START, snapshot(10.0, unknown, **EVEN))) == [("ring-unknown", None)]


@pytest.mark.parametrize(
    ("store", "expected"), [(Store.MNESIA, [("ring-unknown", None)]), (Store.KHEPRI, [])]
)
def test_a_restart_loses_an_unread_order_on_mnesia_only(store: Store, expected: list) -> None:
    unknown = replace(unread(FIRST), release=Release.parse("4.0", store=store))
    interval = compare(START, replace(snapshot(10.0, unknown, unknown, **EVEN), restarted=True))
    assert problems(interval) == expected
    assert interval.ring.status == "unknown"


def test_a_disabled_plugin_is_a_problem() -> None:
    off = replace(FIRST, exchange_types=frozenset({"direct", "topic"}))
    interval = compare(START, snapshot(10.0, off, **EVEN))
    assert problems(interval) == [("plugin-off", None)]
    assert "rabbitmq-plugins enable" in interval.problems[0].message


def test_an_unreachable_broker_is_the_only_problem() -> None:
    interval = compare(START, FAILED, FILE)
    assert interval.problems == (DOWN,)
    expected = ("unknown", "the broker cannot be read; the last known ring is shown")
    assert (interval.ring.status, interval.ring.why) == expected
    assert [row.queue for row in interval.rows] == list(QUEUES)
    never = compare(None, replace(FAILED, observed=None, first=None))
    assert (never.rows, never.release, never.problems) == ((), "", (DOWN,))
    assert (never.ring.status, never.ring.why) == ("unknown", "it has not been read")


SLOTS = """
schema: 1
exchanges:
  orders: {type: x-modulus-hash, slots: 64, queues: {q0: 1, q1: 3}}
queues: {q0: {}, q1: {}}
"""


def test_shares_add_up_over_slots() -> None:
    wanted = loads(SLOTS, format="yaml")
    on_broker = assume_applied(wanted)
    interval = compare(
        snapshot(0.0, on_broker, on_broker, q0=0, q1=0),
        snapshot(9.0, on_broker, on_broker, q0=250, q1=750),
        wanted,
    )
    assert {row.queue: row.exact for row in interval.rows} == {"q0": 0.25, "q1": 0.75}
    assert not interval.problems
    assert interval._ring_check.live is None


def test_the_shares_behind_a_second_hash_are_unknown() -> None:
    below = Exchange("below", "x-consistent-hash")
    bindings = (*FILE.bindings, Binding("orders", ToExchange("below"), "1"))
    bindings += tuple(Binding("below", name, "1") for name in ("q4", "q5"))
    on_broker = assume_applied(Topology("/", (X, below), tuple(map(Queue, (*QUEUES, "q4", "q5"))), bindings))
    exact = {row.queue: row.exact for row in compare(None, snapshot(0.0, on_broker, on_broker)).rows}
    assert exact["q0"] == pytest.approx(0.2, abs=0.01)
    assert (exact["q4"], exact["q5"]) == (None, None)


def test_shares_add_up_where_two_exchanges_lead_to_the_same_exchange() -> None:
    left, right, shared = (Exchange(name, "fanout") for name in ("left", "right", "shared"))
    bindings = (
        Binding("orders", ToExchange("left"), "1"),
        Binding("orders", ToExchange("right"), "3"),
        Binding("left", ToExchange("shared"), ""),
        Binding("right", ToExchange("shared"), ""),
        Binding("shared", "q0", ""),
    )
    on_broker = assume_applied(Topology("/", (X, left, right, shared), (Queue("q0"),), bindings))
    (row,) = compare(None, snapshot(0.0, on_broker, on_broker)).rows
    assert row.exact == pytest.approx(1.0)


def test_a_chain_of_exchanges_may_be_longer_than_the_stack() -> None:
    chain = [Exchange(f"e{number}", "fanout") for number in range(1200)]
    bindings = [Binding("orders", ToExchange("e0"), "1"), Binding("e1199", "q0")]
    bindings += [Binding(f"e{number}", ToExchange(f"e{number + 1}")) for number in range(1199)]
    on_broker = assume_applied(Topology("/", (X, *chain), (Queue("q0"),), tuple(bindings)))
    assert exact_shares("orders", on_broker) == {"q0": 1.0}


def test_drift_of_a_ring_behind_the_exchange_has_no_misrouted_share_of_all_keys() -> None:
    def observed(*below: str) -> Observed:
        bindings = (Binding("orders", "q0", "9"), Binding("orders", ToExchange("below"), "1"))
        bindings += tuple(Binding("below", name, "1") for name in below)
        exchanges = (X, Exchange("below", "x-consistent-hash"))
        return assume_applied(Topology("/", exchanges, tuple(map(Queue, QUEUES[:3])), bindings))

    first = observed("q1", "q2")
    interval = compare(None, snapshot(0.0, observed("q2", "q1"), first))
    assert [(each.name, each.where) for each in interval.problems] == [("ring-drifted", "exchange 'below'")]
    assert (interval.ring.status, interval.ring.misrouted) == ("drifted", None)


@pytest.mark.parametrize("before", [None, START, Snapshot(0.0, "orders", queues={"q1": QueueState("q1")})])
def test_a_new_queue_without_a_consumer_is_not_reported_at_its_first_poll(before: Snapshot | None) -> None:
    after = snapshot(10.0, **EVEN | {"q1": queue("q1", 1000, consumers=0)})
    is_new = before is not None and before is not START
    assert problems(compare(before, after)) == ([] if is_new else [("no-consumer", "q1")])


def test_a_consumer_that_was_active_at_the_previous_poll_is_not_reported() -> None:
    before = snapshot(0.0, **EVEN | {"q1": replace(IDLE, active_consumer="ctag")})
    assert not compare(before, snapshot(10.0, **EVEN | {"q1": IDLE})).problems


def test_an_interval_as_json_has_its_numbers() -> None:
    """Its keys are those of docs/output.md: tests/broker/test_watch.py."""
    fields = compare(START, snapshot(10.0, **EVEN | {"q3": 4000})).as_dict()
    assert json.loads(json.dumps(fields)) == fields
    row = fields["rows"][3]
    assert (row["queue"], row["observed"], row["marks"]) == ("q3", 4000 / 7000, ["hot-queue"])
    assert (row["received"], row["handled"], row["rate_in"], row["rate_out"]) == (4000, 4000, 400.0, 400.0)
    assert (row["depth"], row["oldest"], row["minutes"]) == (0, None, {"1": None, "5": None, "15": None})
    assert fields["problems"][0]["name"] == "hot-queue"


@pytest.mark.parametrize("release", ["4.0", "4.3"])
def test_a_ring_with_duplicate_bindings_is_as_it_was_at_the_start(release) -> None:
    ring = Ring(release=Release.parse(release)).bind("a", "1").bind("b", "1").bind("a", "3")
    bindings = tuple(Binding("orders", each.destination, each.key) for each in ring.bindings)
    listed = replace(FIRST.topology, queues=(Queue("a"), Queue("b")), bindings=bindings)
    first = Observed(listed, ring.release, rings={"orders": ring}, ring_sources={"orders": "node"})
    assert compare(None, snapshot(0.0, first, first))._ring_check.ring.text == "unchanged since the start"
    reordered = Ring(release=ring.release).bind("b", "1").bind("a", "1")
    for later, share in ((ring.unbind("b", "1"), 0.5), (reordered, 1.0)):
        now = replace(first, rings={"orders": later})
        found = compare(None, snapshot(10.0, now, first))._ring_check.ring
        assert (found.status, found.misrouted) == ("drifted", pytest.approx(share, abs=0.001))


@pytest.mark.parametrize(
    ("name", "consumers", "recorded", "expected"),
    [
        ("q7", 0, (), True),  # as q0 to q3, with another number
        ("archive", 0, ("archive",), True),
        ("archive", 0, (), False),
        ("q7", 1, (), False),  # a consumer drains it
    ],
)
def test_an_unbound_queue_with_messages_is_stranded(name, consumers, recorded, expected) -> None:
    now = replace(FIRST, recorded={"orders": frozenset(recorded)})
    left = queue(name, 0, ready=2_684, consumers=consumers)
    interval = compare(START, snapshot(10.0, now, **EVEN, **{name: left}))
    assert problems(interval) == ([("stranded-messages", name)] if expected else [])
    assert [row.depth for row in interval.rows if row.queue == name] == ([2_684] if expected else [])
