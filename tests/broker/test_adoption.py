"""An exchange that an application bound in an unknown order: from the first export to checks without access to a node."""

from __future__ import annotations

import json
from functools import partial
from time import monotonic

import pytest

from rabbit_chx import ConsistentHashExchange, Release, Ring
from tests.broker.erlang import quick_command
from tests.proof import Check, record_result
from tests.queues import a_channel, bind_ring
from tests.verbs import Result, run_verb

pytestmark = [pytest.mark.broker, pytest.mark.newest_first]

WEIGHTS = {"c": "1", "a": "2", "d": "1", "b": "1"}
BOUND = f"an exchange bound by an application in the order {', '.join(WEIGHTS)}"
KEYS = [f"customer-{number}" for number in range(200)]


class Scene:
    """An exchange of an application, and the command line as its operator uses it."""

    def __init__(self, site, capsys, folder) -> None:
        self.site, self.file = site, folder / "orders.yaml"
        self.run = partial(run_verb, capsys)
        self.node = ["--node", quick_command(site.broker)]
        self.began = monotonic()

    def start_application(self) -> None:
        with self.site.connection() as connection:
            bind_ring(connection.channel(), "orders", WEIGHTS)

    def by_hand(self, *changes: tuple[str, str, str]) -> None:
        with a_channel(self.site) as channel:
            for verb, queue, weight in changes:
                channel.queue_declare(queue, durable=True)
                getattr(channel, f"queue_{verb}")(queue, "orders", weight)

    def live(self, verb: str, *arguments: object) -> Result:
        return self.run(verb, *arguments, "--url", self.site.url())

    def keys_on_the_broker(self) -> dict[str, str]:
        return keys_of(Ring.read(self.site.broker.ring("orders", self.site.vhost), release=self.release))

    @property
    def release(self) -> Release:
        return self.site.management.overview().release

    def check_keys(self, what: str, found: Result) -> None:
        """Check that a verb has predicted the queue of each key, or, with an exit code of 1, of no key."""
        there = self.keys_on_the_broker()
        predicted = dict(line.split() for line in found.out.splitlines())
        expected = {} if found.code == 1 else there
        wrong = sum(predicted.get(key) != expected.get(key) for key in KEYS)
        by_name = keys_of(
            Ring.of(sorted((queue, int(weight)) for queue, weight in WEIGHTS.items()), release=self.release)
        )
        differ = sum(by_name[key] != there[key] for key in KEYS)
        control = f"in the order of names: {differ} of {len(KEYS)} wrong"
        seconds = monotonic() - self.began
        record_result(Check("Routing", what, str(self.release), len(KEYS), wrong, seconds, control))
        assert found.code in {0, 1}, found.err
        assert not wrong
        assert differ


def keys_of(ring: Ring) -> dict[str, str]:
    mirror = ConsistentHashExchange(ring)
    return {key: str(mirror.route(key)) for key in KEYS}


@pytest.fixture
def scene(site, capsys, monkeypatch, tmp_path) -> Scene:
    monkeypatch.setenv("RABBITMQ_MANAGEMENT_URL", site.broker.management_url)
    monkeypatch.delenv("AMQP_URL", raising=False)
    made = Scene(site, capsys, tmp_path)
    made.start_application()
    return made


def test_an_export_without_a_node_predicts_nothing_and_with_one_every_key(scene) -> None:
    blind = scene.live("export", "-o", scene.file)
    assert blind.code == 0
    assert "'orders' is written with `order: unknown`" in blind.err
    refused = scene.run("route", *KEYS, "-f", scene.file)
    scene.check_keys(f"{BOUND}, from an export without a node: refused", refused)
    assert (refused.code, refused.out) == (1, "")
    assert "--node" in refused.err
    # The file makes no statement about the order, and the rest matches.
    assert scene.live("plan", scene.file).code == scene.live("check", scene.file).code == 0
    scene.file.unlink()
    assert scene.live("export", "-o", scene.file, *scene.node).code == 0
    scene.check_keys(f"{BOUND}, from an export with a node", scene.run("route", *KEYS, "-f", scene.file))


def test_applying_a_correct_file_records_the_order_for_everything_that_follows(scene) -> None:
    assert scene.live("export", "-o", scene.file, *scene.node).code == 0
    for verb in (
        ("route", *KEYS),
        ("ring",),
        ("simulate",),
        ("report", "-o", scene.file.with_name("no.html")),
    ):
        refused = scene.live(*verb, "-x", "orders")
        assert (refused.code, refused.out) == (1, "")
        for part in ("exchange 'orders'", "--node"):
            assert part in refused.err
    assert not scene.file.with_name("no.html").exists()
    asked = scene.live("route", *KEYS, "-x", "orders", *scene.node)
    scene.check_keys(f"{BOUND}, asked with a node", asked)
    assert scene.live("plan", scene.file).code == scene.live("check", scene.file).code == 2
    planned = scene.live("plan", scene.file, *scene.node)
    assert planned.code == 0
    assert "`apply` records it" in planned.out
    adopted = scene.live("apply", scene.file, "--yes", *scene.node)
    assert adopted.code == 0, adopted.err
    assert "Recorded the bind order of exchange 'orders'." in adopted.out
    for _ in range(2):
        for verb in ("check", "plan"):
            found = scene.live(verb, scene.file)
            assert found.code == 0, found.out + found.err
            assert "record" not in found.out
        scene.start_application()
    repeated = scene.live("apply", scene.file, "--yes", *scene.node)
    assert "Recorded" not in repeated.out
    scene.check_keys(
        f"{BOUND}, adopted, then asked without a node", scene.live("route", *KEYS, "-x", "orders")
    )
    scaled = scene.live("scale", scene.file, "-x", "orders", "--add", "e", "--dry-run", "--max-moved", "30")
    assert scaled.code == 2, scaled.err
    assert "unknown" not in scaled.out
    rows = scene.live("ring", "-x", "orders", "--output", "json").out.splitlines()
    assert [json.loads(row)["queue"] for row in rows] == list(WEIGHTS)
    assert scene.live("simulate", "-x", "orders").code == 0
    page = scene.file.with_name("orders.html")
    reported = scene.live("report", "-x", "orders", "-o", page)
    assert reported.code == 0, reported.err
    assert "exchange 'orders', 4 queues" in reported.out
    assert page.exists()
    scene.file.unlink()
    exported = scene.live("export", "-o", scene.file)
    assert "unknown" not in exported.err + scene.file.read_text()
    scene.check_keys(f"{BOUND}, adopted and exported again", scene.run("route", *KEYS, "-f", scene.file))
    definitions = scene.file.with_name("definitions.json")
    definitions.write_text(json.dumps(scene.site.management.definitions()))
    scene.file.unlink()
    imported = scene.live("export", definitions, "-V", scene.site.vhost, "-o", scene.file)
    assert imported.code == 0, imported.err
    assert "rabbit-chx." not in scene.file.read_text()
    scene.check_keys(f"{BOUND}, adopted and imported", scene.run("route", *KEYS, "-f", scene.file))


@pytest.mark.parametrize("second", [("5", {}), ("1", {"note": "2"})], ids=["weight", "arguments"])
def test_a_second_binding_without_effect_does_not_block_the_adoption_of_the_others(scene, second) -> None:
    """Once, nothing of the virtual host was recorded, and the plan rebound the exchange."""
    weight, arguments = second
    with a_channel(scene.site) as channel:
        channel.exchange_declare("twice", "x-consistent-hash", durable=True)
        for queue in ("a", "b"):
            channel.queue_bind(queue, "twice", "1")
        channel.queue_bind("a", "twice", weight, arguments)
    assert scene.live("export", "-o", scene.file, *scene.node).code == 0
    before = scene.site.bindings()
    adopted = scene.live("apply", scene.file, "--yes", *scene.node)
    assert adopted.code == 0, adopted.err
    assert "[1/" not in adopted.out
    assert "Recorded the bind order of exchange" in adopted.out
    assert scene.site.broker.ring("twice", scene.site.vhost) == ["a", "b"]
    assert {*before.splitlines()} <= {*scene.site.bindings().splitlines()}
    assert scene.live("check", scene.file, *scene.node).code == 0
    assert scene.live("check", scene.file, "-x", "orders").code == 0
    scene.check_keys(
        "an exchange that was adopted next to one with a second binding",
        scene.live("route", *KEYS, "-x", "orders"),
    )


BEFORE_THE_RECORD = (("bind", "x", "1"), ("unbind", "c", "1"), ("bind", "c", "1"))
"""The hand-made binding and, after it, a queue of the application."""


@pytest.mark.parametrize(
    ("place", "changes"),
    {
        "at the end": (("bind", "x", "1"),),
        "before another": BEFORE_THE_RECORD,
        "after one was unbound": (("bind", "x", "1"), ("unbind", "d", "1")),
    }.items(),
)
def test_a_binding_made_by_hand_is_named_and_predictions_are_right_or_refused(scene, place, changes) -> None:
    assert scene.live("export", "-o", scene.file, *scene.node).code == 0
    assert scene.live("apply", scene.file, "--yes", *scene.node).code == 0
    scene.by_hand(*changes)
    for verb in ("plan", "check"):
        found = scene.live(verb, scene.file)
        assert found.code != 0
        text = found.out + found.err
        assert "the binding of queue 'x' with weight 1" in text
        assert "exchange 'orders'" in text
        assert "node" in text
        assert "()" not in text
    for options in (["--yes"], ["--yes", "--prune"]):
        refused = scene.live("apply", scene.file, *options)
        assert refused.code == 1
        assert "Refused" in refused.err
    written = scene.file.with_name("written.yaml")
    written.write_text(scene.file.read_text())
    assert scene.live("scale", written, "--write").code == 0
    refused = scene.run("route", *KEYS, "-f", written)
    assert refused.code == 1
    scene.check_keys(f"a binding made by hand {place} of a recorded ring, `scale --write`: refused", refused)
    new = scene.file.with_name("new.yaml")
    assert scene.live("export", "-o", new).code == 0
    refused = scene.run("route", *KEYS, "-f", new)
    assert refused.code == 1
    scene.check_keys(f"a binding made by hand {place} of a recorded ring: refused", refused)
    new.unlink()
    assert scene.live("export", "-o", new, *scene.node).code == 0
    exported = scene.run("route", *KEYS, "-f", new)
    scene.check_keys(f"a binding made by hand {place} of a recorded ring, read with a node", exported)
    assert scene.live("apply", new, "--yes", *scene.node).code == 0
    assert scene.live("check", new).code == 0
