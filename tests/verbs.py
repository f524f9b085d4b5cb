"""What a verb of the command line left behind, and the topology files that its tests are about."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import click

from rabbit_chx.cli import _exit_code, cli
from tests.patience import PATIENCE

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


SCALED = """
schema: 1
exchanges:
  ring: {type: x-consistent-hash, queues: {"r.{0..3}": 1}}
  slots: {type: x-consistent-hash, slots: 16, queues: {"s.{0..3}": 1}}
  flat: {type: x-modulus-hash, queues: {"f.{0..3}": 1}}
queues:
  "r.{0..3}": {preset: ordered}
  "s.{0..3}": {preset: ordered}
  "f.{0..3}": {preset: ordered}
"""


@cache
def commands() -> dict[str, click.Command]:
    """Every verb."""
    context = click.Context(cli, info_name="rabbit-chx")
    return {name: cli.get_command(context, name) for name in cli.list_commands(context)}


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.out.splitlines()]


def run_verb(capsys, *arguments: object) -> Result:
    capsys.readouterr()
    return Result(_exit_code(list(map(str, arguments))), *capsys.readouterr())


def started(
    *arguments: object, env: Mapping[str, str], program=("-m", "rabbit_chx"), **options: Any
) -> subprocess.Popen[Any]:
    """A verb that runs in a process, with these variables besides those of the tests."""
    command = [sys.executable, *map(str, (*program, *arguments))]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=os.environ | env, **pipes | options)


def in_a_process(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    clean = {key: value for key, value in os.environ.items() if key not in {"AMQP_URL", "RABBITMQ_URL"}}
    return subprocess.run(
        [sys.executable, "-m", "rabbit_chx", *arguments],
        input=b"",
        capture_output=True,
        check=False,
        env=clean | (env or {}),
        timeout=PATIENCE,
    )
