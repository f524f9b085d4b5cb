"""``route`` and ``ring`` through a topology file: the answers of the command line alone, and the way to each queue."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.verbs import EVENTS, ORDERS, SLOTS


def test_a_ring_of_a_file_answers_as_the_queues_on_the_command_line_do(run, write) -> None:
    keys = [f"k{number}" for number in range(40)]
    by_file = run("route", *keys, "--file", write(ORDERS), "--output", "json")
    by_queues = run("route", *keys, "-q", "q.0", "-q", "q.1", "-q", "q.2", "-q", "vip=2", "--output", "json")
    assert by_file.rows == by_queues.rows
    assert {row["queue"] for row in by_file.rows} == {"q.0", "q.1", "q.2", "vip"}


def test_a_message_is_followed_through_all_exchanges(run, write) -> None:
    file = write(EVENTS)
    command = ("route", "order.new", "--file", file, "--exchange", "events", "--header", "tenant=acme")
    (row,) = run(*command, "--output", "json").rows
    (alone,) = run("route", "acme", "--hash-header", "tenant", "-q", "a", "-q", "b", "--output", "json").rows
    queues = sorted(["audit", alone["queue"]])
    assert row == {"schema": 1, "type": "file_route", "key": "order.new", "queues": queues}
    assert run("route", "other", "-f", file, "-x", "events").out.split() == ["other", "audit"]
    assert run("route", "acme", "-f", file, "-x", "orders").out.split() == ["acme", alone["queue"]]


def test_of_slots_the_slot_is_named_and_the_queue_left_to_the_broker(run, write) -> None:
    found = run("route", "customer-42", "--file", write(SLOTS % 1), "--output", "json")
    # erlang:phash2([<<"customer-42">>], 134217728) rem 64 is 24, as Erlang prints it
    (row,) = found.rows
    assert (row["queues"], row["slot"]) == ([{"any_of": ["t.0", "t.1"]}], "tenants.slot.24")
    assert "rabbit-chx export" in found.err
    counted = run("route", "a", "b", "c", "--file", write(SLOTS % 1), "--count", "--output", "json")
    assert sum(int(row["keys"]) for row in counted.rows) == 3


def test_ring_takes_an_exchange_of_a_file(run, write) -> None:
    rows = run("ring", "--file", write(ORDERS), "--output", "json").rows
    assert [(row["queue"], row["weight"]) for row in rows] == [("q.0", 1), ("q.1", 1), ("q.2", 1), ("vip", 2)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["k", "--file", "FILE", "-q", "a"], "--file replaces --queue"),
        (["k", "--exchange", "orders"], "--exchange needs --file"),
        (["k", "--file", "FILE", "--exchange", "nope"], "got 'nope'"),
        (["--file", "FILE"], "missing KEY"),
        (["k", "--file", "FILE", "-x", "events", "--explain"], "x-consistent-hash"),
        (["k", "--file", "/does/not/exist.yaml"], "No such file"),
    ],
)
def test_route_through_a_file_says_what_is_wrong(run, write, arguments, expected) -> None:
    file = str(write(EVENTS))
    found = run("route", *(file if argument == "FILE" else argument for argument in arguments))
    assert (found.code, found.out) == (64, "")
    assert expected in found.err


def test_routing_one_key_loads_nothing_of_topologies() -> None:
    program = (
        "import sys; from rabbit_chx.cli import _exit_code; _exit_code(['route', 'k', '-q', 'a', '-q', 'b']); "
        "sys.exit(' '.join(name for name in sys.modules if 'topology' in name or name == 'pydantic'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.stderr == b"\n"
