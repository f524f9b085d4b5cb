"""A worker of a group: run it as often as you like, and the members share the queues of the exchange, each key in order."""

import logging
import os

from rabbit_chx.consuming import Group, Message


def handle(message: Message) -> None:
    """Handle a message: it is acknowledged when this returns, and handled again if this raises."""
    print(f"{message.queue}: {message.routing_key}: {message.body.decode()}", flush=True)


logging.basicConfig()  # shows warnings, such as of lost connections
Group(
    os.environ["AMQP_URL"],
    exchange=os.environ.get("EXCHANGE", "orders"),
    name="billing",
    management=os.environ.get("RABBITMQ_MANAGEMENT_URL"),
).run(handle)  # until SIGTERM or Ctrl-C
