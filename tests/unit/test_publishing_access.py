"""Whether a user may publish: what the check makes of the broker's replies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pika import frame, spec

from rabbit_chx.errors import InvalidValue
from rabbit_chx.publishing import check_access
from tests.amqp_server import AmqpServer

if TYPE_CHECKING:
    import socket

USER = "refused for user 'me'"
_CONNECTION_CLOSE = spec.Connection.Close.INDEX.to_bytes(4, "big")


def check(code: int, text: str) -> None:
    """Check the access to an exchange of a server that closes the channel with this reply."""

    def behave(client: socket.socket) -> None:
        client.sendall(frame.Method(1, spec.Channel.Close(code, text, 60, 40)).marshal())
        while _CONNECTION_CLOSE not in client.recv(1 << 16):
            pass
        client.sendall(frame.Method(0, spec.Connection.CloseOk()).marshal())

    with AmqpServer(behave) as server:
        check_access(server.url, ["x"])


@pytest.mark.parametrize("operation", ["", "write "], ids=["3.10", "4.3"])
def test_a_refused_topic_is_no_refusal_of_the_exchange(operation: str) -> None:
    check(403, f"ACCESS_REFUSED - {operation}access to topic '' in exchange 'x' in vhost '/' {USER}")


@pytest.mark.parametrize("operation", ["", "write "], ids=["3.10", "4.3"])
@pytest.mark.parametrize("name", ["amq.topic", "access to topic 'a'"])
def test_a_refused_exchange_whose_name_speaks_of_topics_is_reported(operation: str, name: str) -> None:
    with pytest.raises(InvalidValue, match="no write permission on exchange"):
        check(403, f"ACCESS_REFUSED - {operation}access to exchange '{name}' in vhost '/' {USER}")
