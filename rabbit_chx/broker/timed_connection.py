"""A connection of pika that ends when the broker does not answer; pika itself waits for ever."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pika import BlockingConnection, ConnectionParameters
from pika.exceptions import AMQPError, ConnectionWrongStateError, StreamLostError

from rabbit_chx.broker.receiving import ReceivingConnection


class TimedConnection(BlockingConnection):  # type: ignore[misc]
    """Drops itself when a command gets no answer in time, even if heartbeats arrive.

    Waiting for messages (``process_data_events``, ``start_consuming``, ``consume``) may take longer.
    """

    patience: float = 30.0
    """Seconds for the answer to a command."""

    _for_events = False

    def __init__(self, parameters: ConnectionParameters) -> None:
        super().__init__(parameters, _impl_class=ReceivingConnection)

    def __exit__(self, *error: object) -> None:
        """Close the connection; a broker that does not answer this either does no harm."""
        with suppress(AMQPError, OSError):
            super().__exit__(*error)

    def process_data_events(self, time_limit: float | None = 0) -> None:
        """Wait for events as `BlockingConnection` does, which raises a ValueError if the connection has ended before."""
        if not self.is_open:
            raise ConnectionWrongStateError("the connection has ended")
        self._for_events = True
        try:
            super().process_data_events(time_limit)
        finally:
            self._for_events = False

    def _flush_output(self, *waiters: Callable[[], bool]) -> None:
        if self._for_events:
            super()._flush_output(*waiters)
            return
        impl: Any = self._impl
        error = StreamLostError(f"the broker did not answer within {self.patience:g} seconds")
        timer = impl._adapter_call_later(self.patience, lambda: impl._terminate_stream(error))  # noqa: SLF001
        try:
            super()._flush_output(*waiters)
        finally:
            impl._adapter_remove_timeout(timer)  # noqa: SLF001
