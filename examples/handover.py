"""Add a queue while the others have a backlog: its consumer starts after they are drained, so every key keeps its order."""

import os
import threading
from collections import defaultdict
from functools import partial

from rabbit_chx import Ring
from rabbit_chx.broker import connect, drain, pass_marker
from rabbit_chx.publishing import Publisher
from rabbit_chx.topology import drain_first

url, name = os.environ["AMQP_URL"], os.environ.get("EXCHANGE", "example.handover")
old, new = [f"{name}.0", f"{name}.1"], f"{name}.2"
keys = [f"customer-{number}" for number in range(100)]
worked: dict[str, list[int]] = defaultdict(list)
finished = threading.Event()


def on_message(channel, method, properties, body) -> None:  # noqa: ANN001 - pika's own
    """Handle a message; a handover only adds the call of pass_marker."""
    if pass_marker(channel, method, properties):
        return
    key, number = body.decode().split()
    worked[key].append(int(number))
    channel.basic_ack(method.delivery_tag)
    if sum(map(len, worked.values())) == 20 * len(keys):
        finished.set()


def consume(queue: str) -> None:
    """Consume a queue, as a separate process would."""
    with connect(url) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=10)
        channel.basic_consume(queue, on_message)
        while not finished.is_set():
            connection.process_data_events(time_limit=0.1)


def publish(numbers: range) -> None:
    """Publish these numbers for every key, in order."""
    with Publisher(url, exchange=name) as publisher:
        for number in numbers:
            publisher.publish_many([f"{key} {number}".encode() for key in keys], keys)


with connect(url) as connection:
    channel = connection.channel()
    channel.exchange_declare(name, "x-consistent-hash", durable=True)
    for queue in (*old, new):
        channel.queue_declare(queue, durable=True)
    for queue in old:
        channel.queue_bind(queue, name, "1")

    publish(range(10))
    channel.queue_bind(new, name, "1")  # the switch: some keys go to the new queue from here on
    publish(range(10, 20))

    consumers = {queue: threading.Thread(target=partial(consume, queue)) for queue in (*old, new)}
    for queue in old:
        consumers[queue].start()
    losing = drain_first(Ring.of(old), Ring.of([*old, new]))[new]
    drain(connection, losing)  # now every message from before the switch has been consumed
    consumers[new].start()

    for consumer in consumers.values():
        consumer.join()
    for queue in (*old, new):
        channel.queue_delete(queue)
    channel.exchange_delete(name)

broken = [key for key, numbers in worked.items() if numbers != sorted(numbers)]
print(f"{len(worked)} keys, {len(broken)} out of order")
if broken:
    raise SystemExit("the order broke")
