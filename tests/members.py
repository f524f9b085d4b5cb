"""Run members of groups, and other work, in threads of a test."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any

from tests.patience import PATIENCE


class Member(threading.Thread):
    """The thread of a member; ``error`` is what ended the member, if anything."""

    error: BaseException | None = None

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(name="member", daemon=True)
        self._work = work

    def run(self) -> None:
        try:
            done = self._work()
            if inspect.iscoroutine(done):
                asyncio.run(done)
        except BaseException as error:  # noqa: BLE001 - `running` raises it
            self.error = error


@contextmanager
def running(group: Any, handler: Any = lambda _: None, run: str = "run") -> Iterator[Member]:
    """Run a member until the block ends, in an event loop if its group needs one, and raise the error that ended it."""
    member = Member(lambda: getattr(group, run)(handler))
    member.start()
    try:
        yield member
    finally:
        group.stop()
        member.join(PATIENCE)
        assert not member.is_alive(), "the member does not stop"
    if member.error is not None:
        raise member.error


def in_background(work: Callable[[threading.Event], object]) -> AbstractContextManager[Member]:
    """Run something else until the block ends, which sets the event that the work gets, and raise its error."""
    ended = threading.Event()
    return running(SimpleNamespace(run=lambda _: work(ended), stop=ended.set))
