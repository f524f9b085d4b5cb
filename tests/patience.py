"""How long a test waits before it fails, and how one waits in an event loop; a deadline costs nothing when the test passes.

RABBIT_CHX_PATIENCE=3 makes all of it three times as long, the limits of pytest-timeout included.
"""

from __future__ import annotations

import asyncio
import faulthandler
import inspect
import os
import sys
import time
from collections.abc import Callable
from typing import Final, TypeVar

import pytest

_FACTOR: Final = float(os.environ.get("RABBIT_CHX_PATIENCE", "1"))
PATIENCE: Final = 120.0 * _FACTOR
_Met = TypeVar("_Met")


def wait_until(
    condition: Callable[[], _Met],
    what: str | Callable[[], object] = "the condition",
    patience: float = PATIENCE,
    *,
    pause: float = 0.005,
) -> _Met:
    """Wait for a condition, and return what met it; ``what`` is awaited, or returns that after the wait failed."""
    deadline = time.monotonic() + patience
    while not (met := condition()):
        if time.monotonic() > deadline:
            faulthandler.dump_traceback(file=sys.__stderr__)
            pytest.fail(f"waited {patience:.0f} seconds in vain: {what() if callable(what) else what}")
        time.sleep(pause)
    return met


async def wait_until_async(condition: Callable[[], object]) -> None:
    """Wait for a condition that other tasks or threads meet."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - other threads do not know the loop
            await asyncio.sleep(0.001)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function in an event loop of its own."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    asyncio.run(test(**{name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}))
    return True


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
