"""The worker of worker.py in an asyncio application; both can run in the same group."""

import asyncio
import logging
import os

from rabbit_chx.consuming import AsyncGroup, Message


async def handle(message: Message) -> None:
    """Handle a message. It is acknowledged when this function returns, and retried if this function raises."""
    print(f"{message.queue}: {message.routing_key}: {message.body.decode()}", flush=True)


logging.basicConfig()  # shows warnings, such as lost connections
group = AsyncGroup(
    os.environ["AMQP_URL"],
    exchange=os.environ.get("EXCHANGE", "orders"),
    name="billing",
    management=os.environ.get("RABBITMQ_MANAGEMENT_URL"),
)
asyncio.run(group.run(handle))  # until SIGTERM or Ctrl-C
