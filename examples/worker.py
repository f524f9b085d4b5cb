"""A worker of a group: start any number of them, and they share the queues of the exchange, each key in order."""

import logging
import os

from rabbit_chx.consuming import Group, Message


def handle(message: Message) -> None:
    """Handle a message. It is acknowledged when this function returns, and retried if this function raises."""
    print(f"{message.queue}: {message.routing_key}: {message.body.decode()}", flush=True)


logging.basicConfig()  # shows warnings, such as lost connections
Group(
    os.environ["AMQP_URL"],
    exchange=os.environ.get("EXCHANGE", "orders"),
    name="billing",
    management=os.environ.get("RABBITMQ_MANAGEMENT_URL"),
).run(handle)  # until SIGTERM or Ctrl-C
