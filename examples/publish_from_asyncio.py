"""Publish from an asyncio application: the calls that may block run in a thread."""

import asyncio
import os

from rabbit_chx.publishing import Publisher


async def produce(queue: asyncio.Queue[int | None]) -> None:
    """Produce numbers; replace this with your application."""
    for number in range(5_000):
        await queue.put(number)
    await queue.put(None)


async def publish(queue: asyncio.Queue[int | None], publisher: Publisher) -> None:
    """Publish the contents of the queue; publish_many may block while buffers are full, and flush blocks until all are confirmed."""
    done = False
    while not done:
        batch = [await queue.get()]
        while not queue.empty():
            batch.append(queue.get_nowait())
        numbers = [number for number in batch if number is not None]
        done = len(numbers) < len(batch)
        bodies, keys = [b"%d" % number for number in numbers], [f"customer-{number}" for number in numbers]
        await asyncio.to_thread(publisher.publish_many, bodies, keys)
    await asyncio.to_thread(publisher.flush)


async def main() -> None:
    """Run the producer and the publisher."""
    queue: asyncio.Queue[int | None] = asyncio.Queue(maxsize=1_000)
    with Publisher(os.environ["AMQP_URL"], exchange=os.environ.get("EXCHANGE", "orders")) as publisher:
        await asyncio.gather(produce(queue), publish(queue, publisher))
        print(f"{publisher.totals.confirmed:,} confirmed")


asyncio.run(main())
