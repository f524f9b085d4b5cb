"""Every call of a publisher, and of the publisher for asyncio, refuses the same input with the same error."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

from hypothesis import example, given, strategies as st

from rabbit_chx.errors import RabbitChxError
from rabbit_chx.messages.message_fields import PROPERTIES
from rabbit_chx.publishing import AsyncPublisher, Publisher
from tests.property.test_message_field_laws import anything, headers

URL = "amqp://127.0.0.1:1"
"""Nothing listens here: what a publisher that is not open accepts fails with an error that says so."""
LIMIT = 10
names = st.one_of(st.text(max_size=5), st.binary(max_size=5), st.text(min_size=250, max_size=260), anything)
messages = st.fixed_dictionaries(
    {
        "body": st.one_of(st.binary(max_size=LIMIT + 3), st.text(max_size=LIMIT + 3), anything),
        "routing_key": names,
    },
    optional={
        "exchange": names.filter(lambda name: name is not None),  # None is the publisher's own
        "headers": headers,
        **dict.fromkeys([*sorted(PROPERTIES.keys() - {"headers"}), "colour"], anything),
    },
)


def error_of(call: Callable[[], object]) -> str:
    """The error of a call, without the row that only a batch has."""
    try:
        call()
    except RabbitChxError as error:
        return re.sub(r" in row \d+", "", f"{type(error).__name__}: {error}")
    raise AssertionError("a publisher that is not open accepted a message")


@given(messages)
@example({"body": b"x" * (LIMIT + 1), "routing_key": "k"})
@example({"body": "\ud800", "routing_key": "k"})
@example({"body": b"", "routing_key": "x" * 256, "colour": 1})
@example({"body": b"", "routing_key": "k", "exchange": "x" * 256, "headers": {"CC": ["k"]}})
@example({"body": b"", "routing_key": "k", "headers": {}, "expiration": "soon"})
def test_every_call_refuses_the_same_input_with_the_same_error(message: dict[str, Any]) -> None:
    publisher, asynchronous = (
        kind(URL, "x", max_message_bytes=LIMIT) for kind in (Publisher, AsyncPublisher)
    )
    bulk = publisher.bulk()
    batch = {name: [value] for name, value in message.items()}
    bodies, keys = batch.pop("body"), batch.pop("routing_key")
    found = {
        "publish": error_of(lambda: publisher.publish(**message)),
        "submit": error_of(lambda: publisher.submit(**message)),
        "bulk.add": error_of(lambda: bulk.add(**message)),
        "publish_many": error_of(lambda: publisher.publish_many(bodies, keys, **batch)),
        "bulk.add_many": error_of(lambda: bulk.add_many(bodies, keys, **batch)),
        "await publish": error_of(lambda: asyncio.run(asynchronous.publish(**message))),
        "await publish_many": error_of(lambda: asyncio.run(asynchronous.publish_many(bodies, keys, **batch))),
    }
    assert len(set(found.values())) == 1, found
    assert publisher.totals.published == asynchronous.totals.published == 0
