"""A member of a stream group that records what it handles, so that a test can kill, stop and pause it.

    python -m tests.faults.stream_group_member '{"url": ..., "file": ..., "exchange": ..., "name": ...}'

Each line goes to the file in one write before the message counts as handled. With ``directory``, the handler is that of
docs/stream-groups.md, which stores each message in SQLite in one transaction with its offset.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from rabbit_chx.streams import StreamBatch, StreamGroup, StreamMessage
from tests.unit.test_docs import marked


def main(*, url: str, file: str, pause: float, directory: str | None = None, **options: Any) -> None:
    diary = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(*words: object) -> None:
        os.write(diary, (" ".join(map(str, words)) + "\n").encode())

    def handle(message: StreamMessage) -> None:
        write("handled", time.monotonic_ns(), message.queue, message.offset, message.body.decode())
        time.sleep(pause)

    options["on_assigned"] = lambda stream: write("assigned", stream)
    options["on_revoked"] = lambda stream: write("revoked", stream)
    if directory is None:
        StreamGroup(url, **options).run(handle)
    else:
        os.chdir(directory)
        start, store = of_guide()

        def handle_batch(batch: StreamBatch) -> None:
            store(batch)
            for message in batch.messages():
                write("handled", time.monotonic_ns(), message.queue, message.offset, message.body.decode())

        StreamGroup(url, start=start, **options).run_batches(handle_batch)
    write("stopped")


def of_guide() -> tuple[Any, Any]:
    """The functions of the guide's example: where to start, and the handler."""
    names: dict[str, Any] = {}
    exec(marked("stream-groups.md", "test_each_message_is_stored_once").partition("StreamGroup(")[0], names)
    return names["start"], names["handle"]


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
