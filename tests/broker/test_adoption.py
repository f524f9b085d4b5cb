"""An exchange that an application bound in an unknown order: from the first export to checks without access to a node."""

from __future__ import annotations

import json

import pytest

from rabbit_chx import ConsistentHashExchange, Ring
from rabbit_chx.cli import _exit_code
from tests.broker.erlang import node_command
from tests.verbs import Result

pytestmark = [pytest.mark.broker, pytest.mark.newest_first]

WEIGHTS = {"c": "1", "a": "2", "d": "1", "b": "1"}
KEYS = [f"customer-{number}" for number in range(200)]


class Scene:
    """An exchange of an application, and the command line as its operator uses it."""

    def __init__(self, site, capsys, folder) -> None:
        self.site, self._capsys, self.file = site, capsys, folder / "orders.yaml"
        self.node = ["--node", node_command(site.broker)]

    def start_application(self) -> None:
        with self.site.connection() as connection:
            channel = connection.channel()
            channel.exchange_declare("orders", "x-consistent-hash", durable=True)
            for queue, weight in WEIGHTS.items():
                channel.queue_declare(queue, durable=True)
                channel.queue_bind(queue, "orders", weight)

    def by_hand(self, *changes: tuple[str, str, str]) -> None:
        with self.site.connection() as connection:
            channel = connection.channel()
            for verb, queue, weight in changes:
                channel.queue_declare(queue, durable=True)
                getattr(channel, f"queue_{verb}")(queue, "orders", weight)

    def run(self, *arguments: object) -> Result:
        self._capsys.readouterr()
        return Result(_exit_code(list(map(str, arguments))), *self._capsys.readouterr())

    def live(self, verb: str, *arguments: object) -> Result:
        return self.run(verb, *arguments, "--url", self.site.url())

    def keys_on_the_broker(self) -> dict[str, str]:
        release = self.site.management.overview().release
        mirror = ConsistentHashExchange(
            Ring.read(self.site.broker.ring("orders", self.site.vhost), release=release)
        )
        return {key: str(mirror.route(key)) for key in KEYS}

    def routed(self, found: Result) -> dict[str, str]:
        assert found.code == 0, found.err
        return dict(line.split() for line in found.out.splitlines())


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
    assert (refused.code, refused.out) == (1, "")
    assert "--node" in refused.err
    # The file makes no statement about the order, and the rest matches.
    assert scene.live("plan", scene.file).code == scene.live("check", scene.file).code == 0
    scene.file.unlink()
    assert scene.live("export", "-o", scene.file, *scene.node).code == 0
    assert scene.routed(scene.run("route", *KEYS, "-f", scene.file)) == scene.keys_on_the_broker()


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
    assert scene.routed(asked) == scene.keys_on_the_broker()
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
    assert scene.routed(scene.live("route", *KEYS, "-x", "orders")) == scene.keys_on_the_broker()
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
    assert scene.routed(scene.run("route", *KEYS, "-f", scene.file)) == scene.keys_on_the_broker()


def test_without_a_record_nothing_is_written(scene) -> None:
    assert scene.live("export", "-o", scene.file, *scene.node).code == 0
    found = scene.live("apply", scene.file, "--yes", "--no-record", *scene.node)
    assert (found.code, "Recorded" in found.out) == (0, False)
    assert scene.live("check", scene.file).code == 2


BEFORE_THE_RECORD = (("bind", "x", "1"), ("unbind", "c", "1"), ("bind", "c", "1"))
"""The hand-made binding and, after it, a queue of the application."""


@pytest.mark.parametrize(
    "changes", [(("bind", "x", "1"),), BEFORE_THE_RECORD, (("bind", "x", "1"), ("unbind", "d", "1"))]
)
def test_a_binding_made_by_hand_is_named_and_predictions_are_right_or_refused(scene, changes) -> None:
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
    new = scene.file.with_name("new.yaml")
    assert scene.live("export", "-o", new).code == 0
    assert scene.run("route", *KEYS, "-f", new).code == 1
    new.unlink()
    assert scene.live("export", "-o", new, *scene.node).code == 0
    assert scene.routed(scene.run("route", *KEYS, "-f", new)) == scene.keys_on_the_broker()
    assert scene.live("apply", new, "--yes", *scene.node).code == 0
    assert scene.live("check", new).code == 0


def test_a_binding_older_than_the_record_is_part_of_it(scene) -> None:
    scene.by_hand(("bind", "x", "1"))
    assert scene.live("export", "-o", scene.file, *scene.node).code == 0
    assert scene.live("apply", scene.file, "--yes", *scene.node).code == 0
    assert scene.live("check", scene.file).code == 0
