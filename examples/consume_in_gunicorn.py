"""A worker in a web service with threads, with the health checks that Kubernetes asks for.

    pip install rabbit-chx gunicorn
    PYTHONPATH=examples gunicorn --config python:consume_in_gunicorn consume_in_gunicorn:app
    curl -i http://127.0.0.1:8000/readyz

In Flask, two routes return what `healthz` and `readyz` return, and the rest stays the same. If an error ends the
group, gunicorn keeps running. Then `/healthz` answers 503, so that the service is restarted.
"""

import os
from collections.abc import Callable, Iterable
from threading import Thread
from typing import Any

from rabbit_chx.consuming import Group, Message

preload_app = True
workers = 1  # one process for each group, whose health this is: to scale, start more services
threads = 4
graceful_timeout = 40  # longer than `close` of `billing`, 30 seconds

# Not `group`, which is a setting of gunicorn.
billing = Group(
    os.environ["AMQP_URL"],
    exchange=os.environ.get("EXCHANGE", "orders"),
    name="billing",
    management=os.environ.get("RABBITMQ_MANAGEMENT_URL"),
    attempts=3,
)


def handle(message: Message) -> None:
    """Handle a message. It is acknowledged when this function returns, and retried if this function raises."""
    print(f"{message.queue}: {message.routing_key}: {message.body.decode()}", flush=True)


def consume() -> None:
    """Consume until the group is stopped or an error ends it."""
    billing.run(handle, signals=False)


consumer = Thread(target=consume, name="group")


def post_fork(server: object, worker: object) -> None:  # noqa: ARG001
    """Start in the worker process: threads do not survive a fork."""
    consumer.start()


def worker_exit(server: object, worker: object) -> None:  # noqa: ARG001
    """Finish the current messages."""
    billing.stop()
    consumer.join()


def healthz() -> tuple[str, int]:
    """Return 503 if an error has ended the group, or if a message has been waiting for its handler for five minutes."""
    status = billing.status
    if billing.error is not None:
        return status.reason, 503
    return "", 200 if status.oldest is None or status.oldest < 300 else 503


def readyz() -> tuple[str, int]:
    """Return 200 if the group consumes."""
    status = billing.status
    return status.reason, 200 if status.connected else 503


def app(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    """Answer the health checks."""
    text, code = healthz() if environ["PATH_INFO"] == "/healthz" else readyz()
    status = "200 OK" if code == 200 else "503 Service Unavailable"
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{text}\n".encode()]
