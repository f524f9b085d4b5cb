"""A member of a group as a separate program, which records each message and its time.

python -m tests.broker.group_member URL EXCHANGE GROUP MANAGEMENT FILE MILLISECONDS
"""

from __future__ import annotations

import os
import sys
import time

from rabbit_chx.consuming import Group, Message


def main(url: str, exchange: str, group: str, management: str, file: str, milliseconds: str) -> None:
    log = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    seconds = float(milliseconds) / 1000

    def handle(message: Message) -> None:
        line = f"{time.monotonic_ns()} {message.body.decode()} {message.queue}\n"
        os.write(log, line.encode())  # one write, so that the lines of several processes do not mix
        time.sleep(seconds)

    Group(url, exchange=exchange, name=group, management=management, prefetch=20).run(handle)


if __name__ == "__main__":
    main(*sys.argv[1:])
