"""The control of reads: a consumer with automatic acknowledgements, killed as often as Spark's driver.

    python -m tests.faults.auto_ack URL QUEUE FILE

It appends the number of each message to a file, so a message is lost if its number is not in the file.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pika

from rabbit_chx.publishing import Publisher
from tests.faults.spark_load import SLOW
from tests.faults.spark_read import body
from tests.patience import wait_until

REPOSITORY = Path(__file__).parents[2]


def main(url: str, queue: str, file: str) -> None:
    channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
    with Path(file).open("a", buffering=1) as rows:

        def keep(_channel, _method, _properties, content: bytes) -> None:
            rows.write(f"{int(content.split()[0])}\n")
            time.sleep(0.001)  # so that most of a share is still to be written when it is killed

        channel.basic_consume(queue, keep, auto_ack=True)
        channel.start_consuming()


def lost(used, url: str, file: Path, *, share: int, kills: int) -> int:
    """Publish ``share`` messages for each killed consumer, and return how many are missing from the file."""
    file.touch()
    for kill in range(kills):
        _publish(url, used, range(kill * share, (kill + 1) * share))
        with consumer(url, used.queues[0], file):
            enough = len(_lines(file)) + share // 10
            wait_until(lambda enough=enough: len(_lines(file)) >= enough, "rows of the control", SLOW)
    last = kills * share
    _publish(url, used, range(last, last + 1))
    with consumer(url, used.queues[0], file):
        wait_until(lambda: str(last) in _lines(file), "the last row of the control", SLOW)
    return last + 1 - len(set(_lines(file)))


def _publish(url: str, used, numbers: range) -> None:
    with Publisher(url) as publisher:
        publisher.publish_many(map(body, numbers), used.queues[0])


def _lines(file: Path) -> list[str]:
    """The complete lines: the last one may be cut off by a kill."""
    return file.read_text().rpartition("\n")[0].split()


@contextmanager
def consumer(url: str, queue: str, file: Path):
    """Run a consumer, and kill it at the end."""
    process = subprocess.Popen([sys.executable, "-m", __name__, url, queue, str(file)], cwd=REPOSITORY)
    try:
        yield
    finally:
        process.kill()
        process.wait(SLOW)


if __name__ == "__main__":
    main(*sys.argv[1:])
