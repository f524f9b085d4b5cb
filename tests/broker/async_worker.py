"""A worker program that prints the messages it handles: python -m tests.broker.async_worker URL OPTIONS."""

from __future__ import annotations

import asyncio
import json
import sys
from time import monotonic_ns

from rabbit_chx.consuming import AsyncGroup


async def handle(message) -> None:
    print(json.dumps([monotonic_ns(), message.body.decode()]), flush=True)
    await asyncio.sleep(0.01)


if __name__ == "__main__":
    group = AsyncGroup(sys.argv[1], exchange="orders", name="billing", **json.loads(sys.argv[2]))
    asyncio.run(group.run(handle))
