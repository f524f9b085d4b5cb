"""Messages whose properties are encoded by the test."""

from __future__ import annotations

from pika import BasicProperties, spec
from pika.exceptions import ChannelClosedByBroker

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


def refusal(code: int, reply: bytes) -> ChannelClosedByBroker:
    """What pika raises when the broker closes a channel with this reply."""
    sent = b"".join(spec.Channel.Close(code, reply, 50, 10).encode())
    close = spec.Channel.Close().decode(sent)
    return ChannelClosedByBroker(close.reply_code, close.reply_text)
