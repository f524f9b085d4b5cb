"""Publish ten thousand messages, and print the first few that were not confirmed."""

import os

from rabbit_chx.publishing import Publisher, PublishFailed

keys = [f"customer-{number}" for number in range(10_000)]
bodies = [f"hello, {key}".encode() for key in keys]

with Publisher(os.environ["AMQP_URL"], exchange=os.environ.get("EXCHANGE", "orders")) as publisher:
    try:
        totals = publisher.publish_many(bodies, keys, content_type="text/plain", message_id=keys)
    except PublishFailed as failed:
        for failure in failed.failures[:5]:
            print(failure)
        raise SystemExit(1) from None
print(f"{totals.confirmed:,} confirmed, {totals.resent:,} sent more than once")
