"""How long a test waits before it fails; a deadline costs nothing when the test passes.

RABBIT_CHX_PATIENCE=3 makes all of it three times as long, the limits of pytest-timeout included.
"""

from __future__ import annotations

import os
from typing import Final

import pytest

_FACTOR: Final = float(os.environ.get("RABBIT_CHX_PATIENCE", "1"))
PATIENCE: Final = 120.0 * _FACTOR


@pytest.hookimpl(trylast=True)  # when conftest.py of a folder has set a limit
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Multiply limits, which would otherwise end a test before its own deadline."""
    if _FACTOR == 1:
        return
    usual = float(config.getini("timeout"))
    for item in items:
        marker = item.get_closest_marker("timeout")
        limit = marker.args[0] if marker else usual
        item.add_marker(pytest.mark.timeout(limit * _FACTOR), append=False)
