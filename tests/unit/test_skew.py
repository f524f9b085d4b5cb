"""How a sample spreads: counted right, however it comes, and judged as the published tables of chi-squared do."""

from __future__ import annotations

import numpy as np
import pytest

from rabbit_chx import ConsistentHashExchange, shares, spread
from rabbit_chx.mirror.skew import HotKey, QueueShare, Spread, Tally, chi_squared_tail, whole

QUEUES = {"q0": 1, "q1": 1, "q2": 2}
SIMULATE = ["simulate", "-q", "q0", "-q", "q1", "-q", "q2=2"]

# Upper critical values, as every table of the distribution has them: value, degrees of freedom, probability.
CRITICAL = [
    *((3.841, 1, 0.05), (6.635, 1, 0.01), (5.991, 2, 0.05), (9.210, 2, 0.01), (7.815, 3, 0.05)),
    *((18.307, 10, 0.05), (30.578, 15, 0.01), (36.191, 19, 0.01), (124.342, 100, 0.05), (135.807, 100, 0.01)),
]


@pytest.fixture
def exchange() -> ConsistentHashExchange:
    return ConsistentHashExchange(QUEUES, release="4.3.6")


@pytest.mark.parametrize(("value", "degrees", "chance"), CRITICAL)
def test_the_tail_of_chi_squared_is_that_of_the_published_tables(value, degrees, chance) -> None:
    assert chi_squared_tail(value, degrees) == pytest.approx(chance, abs=1e-4)


@pytest.mark.parametrize(
    ("value", "degrees", "chance"), [(0.0, 5, 1.0), (7.0, 0, 1.0), (1e6, 3, 0.0), (9e3, 5_000, 0.0)]
)
def test_the_ends_of_the_tail_do_not_overflow(value, degrees, chance) -> None:
    assert chi_squared_tail(value, degrees) == pytest.approx(chance, abs=1e-9)


def test_rows_keys_and_hot_keys_are_counted(exchange) -> None:
    keys = ["acme"] * 50 + [f"customer-{number}" for number in range(950)] + ["twice"] * 2
    found = spread(exchange, keys)
    routed = [exchange.route(key) for key in keys]
    assert {one.queue: one.rows for one in found.queues} == {name: routed.count(name) for name in QUEUES}
    assert sum(one.keys for one in found.queues) == 952
    assert [(one.key, one.rows, one.queue) for one in found.hot] == [
        ("acme", 50, exchange.route("acme")),
        ("twice", 2, exchange.route("twice")),
    ]
    assert sum(one.share for one in found.queues) == pytest.approx(1)


def test_keys_may_come_from_a_generator(exchange) -> None:
    assert spread(exchange, (key for key in "abc")) == spread(exchange, list("abc"))


def test_headers_are_counted_as_erlang_tells_them_apart(exchange) -> None:
    tally = Tally(exchange)
    tally.add([1, True, 1.0, ["x"], ["x"]], np.array([0, 1, 2, 0, 0]))
    found = tally.spread()
    assert [queue.keys for queue in found.queues] == [2, 1, 1]
    assert found.hot == (HotKey("['x']", "q0", 2, 2 / 5),)


def test_keys_that_differ_are_as_uneven_as_chance_and_one_hot_key_is_not(exchange) -> None:
    even = spread(exchange, [f"customer-{number}" for number in range(20_000)])
    assert even.p_value > 0.01
    assert spread(exchange, ["acme"] * 500 + [f"customer-{number}" for number in range(2_000)]).p_value < 1e-9


def test_of_very_many_keys_the_hot_ones_are_remembered_and_rows_stay_exact(exchange) -> None:
    tally = Tally(exchange, most_keys=100)
    for block in range(50):
        keys = ["acme"] * 3 + [f"customer-{block}-{number}" for number in range(60)]
        tally.add(keys, exchange.route_many(keys))
    found = tally.spread(hot=1)
    assert found.about
    assert found.rows == sum(one.rows for one in found.queues) == 50 * 63
    assert (found.hot[0].key, found.hot[0].rows) == ("acme", 150)


def test_an_empty_sample_is_no_error(exchange) -> None:
    found = Tally(exchange).spread()
    assert (found.rows, found.skew, found.p_value, found.hot) == (0, 1.0, 1.0, ())
    assert "0 rows on 3 queues" in str(found)


def test_all_keys_there_can_be_have_the_exact_shares(exchange) -> None:
    found = whole(exchange)
    assert sum(one.rows for one in found.queues) == 2**21
    assert {one.queue: one.share for one in found.queues} == shares(exchange.ring)
    assert found.chi_squared == pytest.approx(0)


def test_a_spread_is_a_table() -> None:
    found = Spread(
        400,
        (QueueShare("orders", 300, 12, 0.75, 0.5), QueueShare("q1", 100, 9, 0.25, 0.5)),
        (HotKey("acme", "orders", 250, 0.625),),
    )
    assert (found.skew, found.chi_squared, found.degrees_of_freedom) == (1.5, 100.0, 1)
    assert str(found).splitlines() == [
        "400 rows on 2 queues; max/mean 1.50; chi-squared 100.0 (1 degrees of freedom)",
        "",
        "queue   rows   share   exact  keys (about)",
        "orders   300  75.00%  50.00%            12",
        "q1       100  25.00%  50.00%             9",
        "",
        "hottest keys  rows   share  queue",
        "'acme'         250  62.50%  orders",
    ]


def test_the_command_prints_what_the_function_returns(run, exchange) -> None:
    keys = ["acme"] * 5 + [f"customer-{number}" for number in range(100)]
    found = spread(exchange, keys, hot=1)
    text = "\n".join(keys).encode()
    lines = run(*SIMULATE, "--keys", "-", "--output", "json", "--hot", "1", stdin=text).rows
    rows = [line["rows"] for line in lines if line["type"] == "queue"]
    assert rows == [one.rows for one in found.queues]
    assert [line["key"] for line in lines if line["type"] == "hot_key"] == ["acme"]
    assert lines[-1]["chi_squared"] == pytest.approx(found.chi_squared)
    assert lines[-1]["p_value"] == pytest.approx(found.p_value)


def test_the_table_names_the_hot_key_and_says_what_it_means(run) -> None:
    keys = b"acme\n" * 500 + b"\n".join(b"%d" % n for n in range(500))
    found = run(*SIMULATE, "--keys", "-", stdin=keys)
    assert found.code == 0
    assert "acme" in found.out
    assert "less than 1% of samples" in found.out


def test_without_a_sample_the_exact_shares_are_shown(run) -> None:
    lines = run(*SIMULATE, "--output", "json").rows
    assert [line["queue"] for line in lines[:-1]] == list(QUEUES)
    assert sum(line["share"] for line in lines[:-1]) == pytest.approx(1)
    assert "All possible keys on 3 queues" in run(*SIMULATE).out.splitlines()[0]


@pytest.mark.parametrize("sample", [(), ("--keys", "-")])
def test_exchanges_are_not_counted_as_queues(run, write, sample) -> None:
    file = write(
        "schema: 1\nexchanges: {e: {type: x-consistent-hash, slots: 2, queues: [a]}}\nqueues: {a: }\n"
    )
    out = run("simulate", "--file", file, *sample, stdin=b"a\n").out
    assert " on 2 destinations" in out
    assert "The fullest destination gets" in out


@pytest.mark.parametrize("sample", [(), ("--keys", "-")])
def test_an_exchange_without_bindings_spreads_nothing(run, write, sample) -> None:
    file = write("schema: 1\nexchanges: {e: {type: x-consistent-hash}}\n")
    found = run("simulate", "--file", file, *sample, stdin=b"a\n")
    assert (found.code, found.out) == (1, "")
    assert "the exchange has no bucket" in found.err
    assert "0 buckets" in run("ring", "--file", file).out
