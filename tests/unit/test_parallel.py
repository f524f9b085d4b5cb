"""Tests that share a broker or a Spark run on one worker, all others with their file; progress is printed."""

from __future__ import annotations

import pytest

from tests.parallel import Progress, group_of, sort_key


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


def test_long_folders_and_the_newest_release_run_first() -> None:
    tests = [
        "tests/spark/test_order.py::test_order[2.0]",
        "tests/broker/test_report.py::test_a_page[4.3]",
        "tests/broker/test_rings.py::test_rings[4.0-pika]",
        "tests/broker/test_rings.py::test_rings[3.10-pika]",
        "tests/unit/test_releases.py::test_store[4.3]",
    ]
    assert sorted(tests[3:] + tests[:3], key=sort_key) == tests


def test_a_line_names_the_broker_that_is_started_and_its_tests() -> None:
    lines = []

    class Terminal:
        ensure_newline = staticmethod(lambda: None)
        write_line = staticmethod(lines.append)

    class Config:
        class pluginmanager:  # noqa: N801
            get_plugin = staticmethod(lambda name: Terminal)

    progress = Progress(Config)
    tests = [
        "tests/unit/test_a.py::test_1",
        "tests/broker/test_b.py::test_2[4.3]",
        "tests/spark/test_c.py::test_3",
    ]
    progress.pytest_xdist_node_collection_finished(ids=[*tests, "tests/broker/test_b.py::test_4[4.3]"])
    for test in tests:
        progress.pytest_runtest_logstart(nodeid=test)
        progress.pytest_runtest_logfinish()
    assert lines == [
        "[1 of 4 tests done] starting RabbitMQ 4.3 (1 of 2) for 2 tests in tests/broker",
        "[2 of 4 tests done] starting Spark (2 of 2) for 1 tests in tests/spark",
    ]
