"""A worker in a web service on asyncio (Starlette or FastAPI), with the health checks that Kubernetes asks for.

    pip install rabbit-chx starlette uvicorn
    uvicorn --app-dir examples consume_in_starlette:app
    curl -i http://127.0.0.1:8000/readyz

If an error ends the group, uvicorn keeps running. Then `/healthz` answers 503, so that the service is restarted.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from rabbit_chx.consuming import AsyncGroup, Message

group = AsyncGroup(
    os.environ["AMQP_URL"],
    exchange=os.environ.get("EXCHANGE", "orders"),
    name="billing",
    management=os.environ.get("RABBITMQ_MANAGEMENT_URL"),
    attempts=3,
)


async def handle(message: Message) -> None:
    """Handle a message. It is acknowledged when this function returns, and retried if this function raises."""
    print(f"{message.queue}: {message.routing_key}: {message.body.decode()}", flush=True)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:  # noqa: ARG001
    """Consume while the service runs, and finish the current messages when it ends."""
    async with group.running(handle):
        yield


async def healthz(request: Request) -> PlainTextResponse:  # noqa: ARG001
    """Answer 503 if an error has ended the group, or if a message has been waiting for its handler for five minutes."""
    status = group.status
    if group.error is not None:
        return PlainTextResponse(f"{status.reason}\n", 503)
    return PlainTextResponse("", 200 if status.oldest is None or status.oldest < 300 else 503)


async def readyz(request: Request) -> PlainTextResponse:  # noqa: ARG001
    """Answer 200 if the group consumes."""
    status = group.status
    return PlainTextResponse(f"{status.reason}\n", 200 if status.connected else 503)


app = Starlette(routes=[Route("/healthz", healthz), Route("/readyz", readyz)], lifespan=lifespan)
