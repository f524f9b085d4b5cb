"""Messages whose properties are encoded by the test."""

from __future__ import annotations

from pika import BasicProperties

from rabbit_chx.broker.properties import Properties


class Encoded(BasicProperties):
    """Properties that are sent as these bytes."""

    def __init__(self, encoded: bytes) -> None:
        super().__init__()
        self.encoded = encoded

    def encode(self) -> list[bytes]:
        return [self.encoded]


def encoded_properties(**properties: object) -> bytes:
    """Properties as a message from a broker has them."""
    return b"".join(Properties(**properties).encode())
