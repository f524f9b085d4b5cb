"""A web service on asyncio: the publisher lives as long as the application, and each request waits for its own confirm.

    uvicorn --app-dir examples publish_from_starlette:app
    curl --data 'two apples' http://127.0.0.1:8000/orders/customer-42

FastAPI takes the same `lifespan`.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from rabbit_chx.publishing import AsyncPublisher, BrokerUnavailable, PublishFailed


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[dict[str, AsyncPublisher]]:  # noqa: ARG001
    """Connect before the first request, and end when every message has its outcome."""
    exchange = os.environ.get("EXCHANGE", "orders")
    async with AsyncPublisher(os.environ["AMQP_URL"], exchange=exchange) as publisher:
        yield {"publisher": publisher}


async def order(request: Request) -> PlainTextResponse:
    """Answer 202 only if the broker has the message."""
    body = await request.body()
    try:
        await request.state.publisher.publish(body, request.path_params["customer"], timeout=30)
    except PublishFailed as failed:
        again = "it may have arrived" if failed.may_have_arrived else "try again"
        return PlainTextResponse(f"{failed}; {again}\n", 503)
    except BrokerUnavailable as down:
        return PlainTextResponse(f"{down}\n", 503)
    return PlainTextResponse("accepted\n", 202)


app = Starlette(routes=[Route("/orders/{customer}", order, methods=["POST"])], lifespan=lifespan)
