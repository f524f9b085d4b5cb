"""Messages whose properties are encoded by the test."""

from __future__ import annotations

from pika import BasicProperties


class Encoded(BasicProperties):
    """Properties that are sent as these bytes."""

    def __init__(self, encoded: bytes) -> None:
        super().__init__()
        self.encoded = encoded

    def encode(self) -> list[bytes]:
        return [self.encoded]
