"""Tests that share a broker or a Spark stay together, all others with their file."""

from __future__ import annotations

import pytest

from tests.lanes import place_of, room_of


@pytest.mark.parametrize(
    ("test", "room"),
    [
        ("tests/broker/test_report.py::test_a_page[4.3]", "broker 4.3"),
        ("tests/broker/test_parity_keys.py::test_keys[3.10-pika-2]", "broker 3.10"),
        ("tests/broker/test_topology_slots.py::test_slots[4.3]", "broker 4.3 topology"),
        ("tests/faults/test_topology_faults.py::test_unbound[4.3]", "faults 4.3"),
        ("tests/faults/test_returns.py::test_large[1-4.0]", "faults 4.0"),
        ("tests/broker/test_testing_broker.py::test_a_broker_of_ones_own", "broker"),
        ("tests/spark/test_order.py::test_order[2.0]", "spark"),
        ("tests/unit/test_releases.py::test_store[4.3]", "tests/unit/test_releases.py"),
        ("tests/unit/topology/test_ways.py::test_x", "tests/unit/topology/test_ways.py"),
    ],
)
def test_a_worker_keeps_a_broker_or_a_file(test, room) -> None:
    assert room_of(test) == room


def test_long_folders_and_the_newest_release_are_begun_first() -> None:
    tests = [
        "tests/broker/test_report.py::test_a_page[4.3]",
        "tests/broker/test_rings.py::test_rings[4.0-pika]",
        "tests/broker/test_rings.py::test_rings[3.10-pika]",
        "tests/spark/test_order.py::test_order[2.0]",
        "tests/unit/test_releases.py::test_store[4.3]",
    ]
    assert sorted(tests[3:] + tests[:3], key=place_of) == tests
