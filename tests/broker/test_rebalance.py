"""`rabbit-chx rebalance` on real brokers: the traced load of slots, and the effect of the moves on queues."""

from __future__ import annotations

import random
import threading
from collections import Counter
from contextlib import AbstractContextManager
from urllib.parse import urlsplit

import pytest

from rabbit_chx import ModulusHashExchange, ToExchange
from rabbit_chx.broker.applying.apply import apply
from rabbit_chx.broker.reading.reader import read
from rabbit_chx.topology.file.load import load
from rabbit_chx.topology.planning.plan import plan
from rabbit_chx.topology.planning.slot_changes import plan_moves
from tests.broker.erlang import node_command
from tests.broker.scaling_scene import KEYS, SLOTS, Scene
from tests.broker.topology_site import Site
from tests.json_lines import printed
from tests.members import Member, in_background
from tests.proof import never
from tests.verbs import Result

pytestmark = [pytest.mark.one_release, pytest.mark.broker]

TOPOLOGY = """
schema: 1
vhost: "VHOST"
exchanges:
  front:
    type: topic
    bindings: [{exchange: tenants, key: "#"}]
  tenants:
    type: x-modulus-hash
    slots: 16
    queues: WEIGHTS
queues: {"t.{0..3}": {type: classic, arguments: {x-max-length: 10}}}
"""
EVEN = {f"t.{number}": 1 for number in range(4)}
TARGET = 1.2
ENOUGH = 1_000
"""Messages of a sample in which the share of each queue differs by less than 0.06 from its share of all keys."""


class Shop:
    """Slots on a broker, and a file that describes them."""

    def __init__(self, site: Site, folder) -> None:
        self.site = site
        self.file = folder / "topology.yaml"
        self.write(EVEN)
        apply(site.url(), self.planned(), management=site.management)
        slots = load(self.file).slots[0]
        release = read(site.management, site.vhost).release
        self.mirror = ModulusHashExchange(map(ToExchange, slots.names), release=release)

    def write(self, weights) -> None:
        text = TOPOLOGY.replace("VHOST", self.site.vhost)
        self.file.write_text(text.replace("WEIGHTS", str(weights).replace("'", '"')))

    def planned(self):
        return plan(load(self.file), read(self.site.management, self.site.vhost))

    def queue_of(self) -> dict[str, str]:
        return queue_of_slots(self.site)

    def keys_with_a_full_queue(self) -> list[str]:
        """One key for each message to send: about half of the messages go to one queue."""
        queue_of = self.queue_of()
        keys = [f"tenant-{number}" for number in range(400)]
        full = [key for key in keys if queue_of[self.mirror.route(key).name] == "t.2"]
        return keys + full * 2

    def share_of_queues(self, keys) -> dict[str, float]:
        """The share of each queue if every key is one message."""
        queue_of = self.queue_of()
        counts = Counter(queue_of[self.mirror.route(key).name] for key in keys)
        return {queue: count / len(keys) for queue, count in counts.items()}


def queue_of_slots(site: Site) -> dict[str, str]:
    bounds = site.management.bindings(site.vhost)
    return {bound.source: bound.destination for bound in bounds if ".slot." in bound.source}


def traffic(site: Site, keys) -> AbstractContextManager[Member]:
    """Send keys in random order until the block ends, half of them through another exchange."""

    def send(ended: threading.Event) -> None:
        random_ = random.Random(16)
        with site.connection() as connection:
            channel = connection.channel()
            while not ended.is_set():
                for exchange in ("tenants", "front"):
                    for key in random_.choices(keys, k=20):
                        channel.basic_publish(exchange, key, b"x")
                connection.process_data_events(0.01)

    return in_background(send)


@pytest.fixture
def shop(site, tmp_path):
    return Shop(site, tmp_path)


def is_traced(site: Site) -> bool:
    name = ",".join(str(byte) for byte in site.vhost.encode())
    return site.broker.eval(f"rabbit_trace:enabled(<<{name}>>).").strip() == "true"


def by_type(found: Result) -> dict[str, list[dict]]:
    rows: dict[str, list[dict]] = {}
    for row in found.rows:
        rows.setdefault(row["type"], []).append(row)
    return rows


@pytest.mark.long
@pytest.mark.newest_first
def test_the_proposed_moves_even_out_the_load_that_was_traced(shop, site, run) -> None:
    keys = shop.keys_with_a_full_queue()
    before = shop.share_of_queues(keys)
    assert max(before.values()) * 4 > 1.5
    node = node_command(site.broker)
    options = ("--node", node, "--dry-run", "--output", "json")
    with traffic(site, keys):
        for seconds in (5, 20, 60):  # on a busy machine, five may be too few
            found = run("rebalance", shop.file, "--sample", seconds, *options)
            if found.code != 2 or by_type(found)["rebalancing"][0]["messages"] > ENOUGH:
                break
    assert found.code == 2, found.err
    assert "did not reach" not in found.err
    assert not is_traced(site)
    printed("rebalance", found.rows)

    rows = by_type(found)
    (whole,) = rows["rebalancing"]
    assert whole["messages"] > ENOUGH
    for row in rows["queue"]:
        assert row["load"] == pytest.approx(before[row["queue"]], abs=0.06)
    assert whole["met"]

    division = {row["slot"]: row["to"] for row in rows["move"]}
    made = plan_moves(load(shop.file), "tenants", division, read(site.management, site.vhost))
    assert [row["do"] for row in rows["step"]] == list(map(str, made.steps))
    apply(site.url(), made, management=site.management)
    assert max(shop.share_of_queues(keys).values()) * 4 < TARGET + 0.15  # the load was measured with a sample

    if whole["weights"] is not None:
        assert shop.planned().steps  # the old file would undo the moves
        shop.write(whole["weights"])
    assert not shop.planned().steps


def test_a_sample_of_keys_needs_no_traffic_and_names_the_hot_key(shop, site, run, tmp_path) -> None:
    keys = [f"tenant-{number}" for number in range(400)] + ["tenant-7"] * 300
    (tmp_path / "keys.txt").write_text("\n".join(keys))
    found = run("rebalance", shop.file, "--keys", tmp_path / "keys.txt", "--dry-run", "--output", "json")
    assert found.code == 2, found.err
    rows = by_type(found)
    (hot,) = rows["hot_slot"]
    assert (hot["slot"], hot["key"]) == (shop.mirror.route("tenant-7").name, "tenant-7")
    assert hot["key_load"] == pytest.approx(301 / 700)
    assert not rows["rebalancing"][0]["met"]
    assert {row["queue"]: row["load"] for row in rows["queue"]} == pytest.approx(shop.share_of_queues(keys))
    table = run("rebalance", shop.file, "--keys", tmp_path / "keys.txt", "--dry-run")
    assert "no move helps" in table.out
    assert "'tenant-7'" in table.out


def test_the_capacities_to_pass_from_then_on_are_printed_as_options(shop, run, tmp_path) -> None:
    (tmp_path / "keys.txt").write_text("\n".join(f"tenant-{number}" for number in range(400)))
    command = ("rebalance", shop.file, "--dry-run", "--keys", tmp_path / "keys.txt")
    found = run(*command, "--capacity", "t.0=3")
    (options,) = (
        line.partition("rebalance: ")[2] for line in found.out.splitlines() if "From then on" in line
    )
    repeated = run(*command, *options.split())
    assert found.code == 2
    assert (repeated.code, repeated.out) == (found.code, found.out)


@pytest.mark.since_4_0
def test_applied_moves_keep_every_message_and_the_order_of_every_key(site, run, tmp_path) -> None:
    with Scene(site, tmp_path, SLOTS.replace("64", "16"), queues=4, milliseconds=1, waiting=300) as scene:
        scene.start_members(2)
        scene.start_publishing()
        scene.publish_on(500)
        full = {key for _, key, _, queue in scene.ledger().lines if queue == "orders.2"}
        keys, before = tmp_path / "keys.txt", queue_of_slots(site)
        keys.write_text("\n".join(key for key in KEYS for _ in range(3 if key in full else 1)))
        found = run("rebalance", scene.file, "--keys", keys, "--yes", "--output", "json")
        assert found.code == 0, found.err
        rows = by_type(found)
        assert {row["what"] for row in rows["done"]} == {"hold", "step", "drain", "release"}
        assert queue_of_slots(site) == before | {row["slot"]: row["to"] for row in rows["move"]}
        ledger = scene.finish()
    handled = Counter((key, number) for _, key, number, _ in ledger.lines)
    never(twice=[message for message, times in handled.items() if times > 1])
    never(out_of_order=ledger.out_of_order)


@pytest.mark.newest_first
def test_it_is_said_at_once_that_the_tracer_is_off(shop, run) -> None:
    found = run("rebalance", shop.file, "--dry-run")
    assert found.code == 1
    assert "rabbitmqctl trace_on -p" in found.err


def test_the_moves_of_an_interrupted_change_come_first_and_only_after_a_yes(
    shop, site, run, monkeypatch
) -> None:
    slot, queue = next(iter(shop.queue_of().items()))
    other = next(each for each in EVEN if each != queue)
    with site.connection() as connection:
        connection.channel().queue_bind(other, slot, "1")
    before = site.management.bindings(site.vhost)
    found = run("rebalance", shop.file, "--dry-run", "--output", "json")
    assert found.code == 2, found.err
    assert f"an interrupted change began: {slot}\n" in found.err
    (step,) = by_type(found)["step"]
    unbinds = {f"unbind queue {each!r} from exchange {slot!r} with key '1'" for each in (queue, other)}
    assert step["do"] in unbinds  # either queue keeps the slot
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", lambda *_, **__: False)
    declined = run("rebalance", shop.file)
    assert declined.code == 3
    assert declined.err.endswith("Nothing was changed.\n")
    assert site.management.bindings(site.vhost) == before


@pytest.fixture
def as_member(site):
    """Options that name a user with only the tag management, who may read traced messages."""
    site.management._request("PUT", ["users", "reader"], body={"password": "sesame", "tags": "management"})
    site.grant("reader", "^amq\\.gen-", "^amq\\.gen-", "^(amq\\.gen-.*|amq\\.rabbitmq\\.trace)$")
    yield ["--url", f"amqp://reader:sesame@{urlsplit(site.broker.url).netloc.rpartition('@')[2]}"]
    site.management._request("DELETE", ["users", "reader"])


@pytest.mark.long
def test_a_user_without_tags_measures_what_others_trace(shop, site, run, as_member) -> None:
    with traffic(site, ["a", "b", "c"]):
        found = run("rebalance", shop.file, "--sample", 1, "--dry-run", *as_member)
        assert found.code == 1
        assert "are not traced" in found.err
        site.broker.ctl("trace_on", "-p", site.vhost)
        found = run("rebalance", shop.file, "--sample", 2, "--dry-run", "--output", "json", *as_member)
        assert found.code in {0, 2}, found.err
        assert is_traced(site)  # rebalance did not turn it on, so it must not turn it off
        assert by_type(found)["rebalancing"][0]["messages"]
    # Messages published a moment ago must not count as published during the sample.
    found = run("rebalance", shop.file, "--sample", 1, "--dry-run", *as_member)
    assert found.code == 1
    assert "no message was published" in found.err
    site.grant("reader", "^$", "^$", "^$")
    assert "set_permissions" in run("rebalance", shop.file, "--sample", 1, "--dry-run", *as_member).err
