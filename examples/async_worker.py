"""The worker of worker.py in an asyncio application, on aio-pika; both can run in the same group."""

import asyncio
import logging
import os
import signal

from rabbit_chx.consuming import AsyncGroup


async def main() -> None:
    """Handle messages until SIGTERM or Ctrl-C; each is acknowledged when the loop asks for the next one."""
    group = AsyncGroup(
        os.environ["AMQP_URL"],
        exchange=os.environ.get("EXCHANGE", "orders"),
        name="billing",
        management=os.environ.get("RABBITMQ_MANAGEMENT_URL"),
    )
    async with group:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, group.stop)
        async for message in group:
            print(f"{message.queue}: {message.routing_key}: {message.body.decode()}", flush=True)


logging.basicConfig()  # shows warnings, such as lost connections
asyncio.run(main())
