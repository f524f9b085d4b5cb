"""SIGINT and SIGTERM for a command that must finish what it has begun."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_T = TypeVar("_T")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class GracefulStop:
    """Turns the first SIGINT or SIGTERM into a request to stop; the second one acts as usual.

    An exception at a random moment could leave a message accepted and not counted, so the first signal raises one only
    while `next_of` waits for input.
    """

    def __init__(self, on_signal: Callable[[], object]) -> None:
        self.signal: int | None = None
        """The signal that arrived."""
        self._on_signal = on_signal
        self._reading = False
        self._before: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return self.signal is not None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def _handle(self, number: int, _frame: object) -> None:
        self.__exit__()
        self.signal = number
        self._on_signal()
        if self._reading:
            raise KeyboardInterrupt

    def next_of(self, iterator: Iterator[_T]) -> _T | None:
        """Return the next item, or None at the end or after a signal."""
        try:
            self._reading = True
            item = None if self else next(iterator, None)
            self._reading = False
        except KeyboardInterrupt:
            if not self:
                raise
            return None
        return item
