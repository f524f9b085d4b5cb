"""The ways to write a DataFrame that ``spark.py`` compares: this connector, what is written by hand, and the limit.

Those by hand run in Spark's Python workers, which import this file: it imports no PySpark, and no client but pika.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice
from multiprocessing import get_context
from time import perf_counter, process_time
from typing import Any

from ways.publishing import EXCHANGE, WINDOW, Load, PikaWindow, bare_socket, publish_blocking

START_TIMEOUT = 60
STREAM = "benchmark.stream"


def connector(df: Any, url: str) -> None:
    """This project's: ``format("rabbitmq")`` with its defaults."""
    messages = df.selectExpr("key as routing_key", "body as value")
    messages.write.format("rabbitmq").options(url=url, exchange=EXCHANGE).mode("append").save()


def to_stream(df: Any, url: str) -> None:
    """Write to a stream, each row exactly once; the URL is that of the stream protocol."""
    messages = df.selectExpr("key as routing_key", "body as value")
    messages.write.format("rabbitmq").options(url=url, stream=STREAM).mode("append").save()


def dropping(df: Any, _url: str) -> None:
    """Write to a sink that drops the rows."""
    df.selectExpr("key as routing_key", "body as value").write.format("dropping").mode("append").save()


def foreach_blocking(df: Any, url: str) -> None:
    """``foreachPartition`` with the BlockingConnection of pika, which waits for each confirm."""
    df.foreachPartition(lambda rows: publish_blocking(url, ((row.key, bytes(row.body)) for row in rows)))


def foreach_window(df: Any, url: str) -> None:
    """``foreachPartition`` with the SelectConnection of pika and a window of unconfirmed messages."""
    df.foreachPartition(partial(RowsWindow, url))


class RowsWindow(PikaWindow):
    """The window over a partition with an unknown number of rows."""

    def __init__(self, url: str, rows: Iterable[Any]) -> None:
        self.rows, self.wanted = iter(rows), True
        super().__init__(Load(url, [], b"", ""))

    def on_confirm(self, frame: Any) -> None:
        self.confirms.take(frame.method.delivery_tag, frame.method.multiple)
        if self.sent - self.confirms.floor < WINDOW // 2:
            self.send()

    def send(self) -> None:
        if self.wanted:
            end = self.confirms.floor + WINDOW
            for row in islice(self.rows, end - self.sent):
                self.channel.basic_publish(
                    EXCHANGE, row.key, bytes(row.body), self.properties, mandatory=True
                )
                self.sent += 1
            self.wanted = self.sent == end
        if not self.wanted and self.confirms.floor == self.sent:
            self.connection.close()


def bare_sockets(load: Load, connections: int) -> tuple[float, float]:
    """The limit, without Spark: a process for each connection. Returns seconds, and CPU seconds of all together.

    The clock starts when all processes stand, and includes that they connect.
    """
    context = get_context("spawn")
    gate = context.Barrier(connections + 1)
    shares = [replace(load, keys=load.keys[number::connections]) for number in range(connections)]
    with ProcessPoolExecutor(connections, context, gate.wait, (START_TIMEOUT,)) as pool:
        answers = [pool.submit(cpu_of_bare_socket, share) for share in shares]
        gate.wait(START_TIMEOUT)
        start = perf_counter()
        cpu = sum(answer.result() for answer in answers)
        return perf_counter() - start, cpu


def cpu_of_bare_socket(load: Load) -> float:
    before = process_time()
    bare_socket(load)
    return process_time() - before


OURS, OURS_STREAM = 'format("rabbitmq")', 'format("rabbitmq"), stream'
DROPPING, LIMIT = "a sink that drops the rows", "bare sockets, no Spark"

# Each way, and the part of the rows that it writes: a slow one needs fewer for a steady rate.
SPARK_WAYS: dict[str, tuple[Callable[[Any, str], None], float]] = {
    "foreachPartition, pika, each confirm": (foreach_blocking, 0.05),
    "foreachPartition, pika, window": (foreach_window, 0.5),
    OURS: (connector, 1.0),
    OURS_STREAM: (to_stream, 1.0),
    DROPPING: (dropping, 1.0),
}
