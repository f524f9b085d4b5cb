"""A web service with processes and threads: the application is loaded once, and each worker process connects after the fork.

    PYTHONPATH=examples gunicorn --config python:publish_from_gunicorn publish_from_gunicorn:app
    curl --data 'two apples' http://127.0.0.1:8000/orders/customer-42

The settings of gunicorn and the application are both in this file. Celery's signals `worker_process_init` and
`worker_process_shutdown` take the places of `post_fork` and `worker_exit`.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any

from rabbit_chx.publishing import BrokerUnavailable, Publisher, PublishFailed

preload_app = True
workers = 2
threads = 4

# Nothing connects here, so the parent has no connection that its children could share.
publisher = Publisher(os.environ["AMQP_URL"], exchange=os.environ.get("EXCHANGE", "orders"))


def post_fork(server: object, worker: object) -> None:  # noqa: ARG001
    """Connect this worker process; its threads share the publisher."""
    publisher.open()


def worker_exit(server: object, worker: object) -> None:  # noqa: ARG001
    """Wait until every message has its outcome."""
    publisher.close()


def app(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    """Answer 202 only if the broker has the message."""
    body = environ["wsgi.input"].read()
    status, text = "202 Accepted", "accepted"
    try:
        publisher.publish(body, environ["PATH_INFO"].rpartition("/")[2], timeout=30)
    except PublishFailed as failed:
        again = "it may have arrived" if failed.may_have_arrived else "try again"
        status, text = "503 Service Unavailable", f"{failed}; {again}"
    except BrokerUnavailable as down:
        status, text = "503 Service Unavailable", str(down)
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{text}\n".encode()]
