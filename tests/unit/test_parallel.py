"""Tests that share a broker or a Spark run on one worker, all others with their file."""

from __future__ import annotations

import pytest

from tests.parallel import group_of


@pytest.mark.parametrize(
    ("test", "group"),
    [
        ("tests/broker/test_report.py::test_a_page[4.3]", "broker 4.3"),
        ("tests/broker/test_parity_keys.py::test_keys[3.10-pika-2]", "broker 3.10"),
        ("tests/broker/test_topology_slots.py::test_slots[4.3]", "broker 4.3 topology"),
        ("tests/broker/test_scaling_kills.py::test_kills[4.3-slots]", "broker 4.3 consumers"),
        ("tests/broker/test_scaling_kills.py::test_kills[4.0-slots]", "broker 4.0"),
        ("tests/faults/test_topology_faults.py::test_unbound[4.3]", "faults 4.3"),
        ("tests/faults/test_spark_faults.py::test_killed[4.3]", "faults 4.3 spark"),
        ("tests/faults/test_returns.py::test_large[1-4.0]", "faults 4.0"),
        ("tests/broker/test_testing_broker.py::test_a_broker_of_ones_own", "broker"),
        ("tests/spark/test_spread.py::test_spread[2.0]", "spark"),
        ("tests/spark/test_order.py::test_order[2.0]", "spark processes"),
        ("tests/unit/test_releases.py::test_store[4.3]", "tests/unit/test_releases.py"),
        ("tests/unit/topology/test_ways.py::test_x", "tests/unit/topology/test_ways.py"),
    ],
)
def test_tests_of_one_broker_or_file_share_a_worker(test, group) -> None:
    assert group_of(test) == group
