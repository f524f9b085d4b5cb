"""What a verb of the command line left behind, and the topology files that its tests are about."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass

ORDERS = """
schema: 1
exchanges:
  orders:
    type: x-consistent-hash
    queues: {"q.{0..2}": 1, vip: 2}
queues:
  "q.{0..2}": {}
  vip: {}
"""
SLOTS = """
schema: 1
exchanges:
  tenants:
    type: x-modulus-hash
    slots: 64
    queues: {"t.{0..%d}": 1}
queues:
  "t.{0..5}": {}
"""
EVENTS = """
schema: 1
exchanges:
  events:
    type: topic
    bindings: [{exchange: orders, key: "order.#"}, {queue: audit, key: "#"}]
  orders:
    type: x-consistent-hash
    hash-header: tenant
    queues: [a, b]
queues: {a: {}, b: {}, audit: {}}
"""


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.out.splitlines()]


def in_a_process(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    clean = {key: value for key, value in os.environ.items() if key not in {"AMQP_URL", "RABBITMQ_URL"}}
    return subprocess.run(
        [sys.executable, "-m", "rabbit_chx", *arguments],
        input=b"",
        capture_output=True,
        check=False,
        env=clean | (env or {}),
        timeout=120,
    )
