"""Publish from an asyncio application, such as a web service: each task waits for the confirm of its own message."""

import asyncio
import os

from rabbit_chx.publishing import AsyncPublisher, PublishFailed


async def handle(number: int, publisher: AsyncPublisher) -> bool:
    """Handle a request; replace this with your application."""
    try:
        await publisher.publish(b"%d" % number, f"customer-{number}", timeout=30)
    except PublishFailed as failed:
        print(f"request {number}: {failed}; may have arrived: {failed.may_have_arrived}")
        return False
    return True


async def main() -> None:
    """Open one publisher for the whole program, and handle requests at the same time."""
    exchange = os.environ.get("EXCHANGE", "orders")
    async with AsyncPublisher(os.environ["AMQP_URL"], exchange=exchange) as publisher:
        done = await asyncio.gather(*(handle(number, publisher) for number in range(5_000)))
    print(f"{sum(done):,} confirmed")


asyncio.run(main())
