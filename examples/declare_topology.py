"""Declare a topology: read the broker's state, plan the difference, and apply it step by step."""

import os

from rabbit_chx.broker import Management, apply, read
from rabbit_chx.topology import loads, plan

topology = loads(
    """
    schema: 1
    exchanges:
      example.orders:
        type: x-consistent-hash
        queues: {"example.orders.{0..3}": 1, example.vip: 3}
    queues:
      "example.orders.{0..3}": {preset: ordered}
      example.vip: {}
    """,
    format="yaml",
)
management = Management(os.environ["RABBITMQ_MANAGEMENT_URL"])
planned = plan(topology, read(management, topology.vhost))
applied = apply(os.environ["AMQP_URL"], planned, management=management, on_step=print)
print(f"{len(applied.done)} steps done")
