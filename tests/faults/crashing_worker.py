"""A worker program that ends without a trace while it handles a message with the body "kill".

    python -m tests.faults.crashing_worker Group '{"url": ..., "exchange": ..., "name": ..., "queues": [...]}'

It prints the other messages that it has handled, one a line.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from rabbit_chx.consuming import AsyncGroup, Group, Message


def handle(message: Message) -> None:
    if message.body == b"kill":
        os._exit(9)
    os.write(1, message.body + b"\n")


async def handle_in_loop(message: Message) -> None:
    handle(message)


if __name__ == "__main__":
    kind, options = sys.argv[1], json.loads(sys.argv[2])
    if kind == "Group":
        Group(**options).run(handle)
    else:
        asyncio.run(AsyncGroup(**options).run(handle_in_loop))
