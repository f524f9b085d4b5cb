"""A part of the long tests: with ``--long-part 2/3``, those of the other two thirds of the files are left out.

All other tests stay. `.ci/run` runs a third, which the sources of the commit select, so that it takes half of the time.
"""

from __future__ import annotations

from zlib import crc32

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long-part", metavar="N/M", help="of the long tests, only the Nth of M parts")


@pytest.hookimpl(trylast=True)  # when conftest.py of a folder has marked tests as long
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not (part := config.getoption("long_part")):
        return
    number, parts = map(int, part.split("/"))
    if not 0 < number <= parts:
        raise pytest.UsageError(f"--long-part {part}: the first number is one of 1 to {parts}")
    others = [
        item
        for item in items
        if item.get_closest_marker("long")
        and crc32(item.nodeid.partition("::")[0].encode()) % parts != number - 1
    ]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in set(others)]
