"""``rabbit-chx scale`` without changes to a broker: invalid usage, refused plans, dry runs, and the printed file."""

from __future__ import annotations

from pathlib import Path

import pytest

from rabbit_chx.cli.broker_access import BrokerAccess
from rabbit_chx.topology.file.load import load
from rabbit_chx.topology.model import NodeState
from rabbit_chx.topology.planning.scaled import scaled
from rabbit_chx.topology.planning.what_if import assume_applied
from tests.verbs import SCALED

STREAMS = """
schema: 1
exchanges:
  events: {type: x-consistent-hash, queues: {"events-{0..3}": 1}}
queues:
  "events-{0..3}": {type: stream}
"""


class NoQueues:
    """A management API that lists no queue, so that nothing is held."""

    def queues(self, _vhost: str) -> list[object]:
        return []

    def tracing(self, _vhost: str) -> bool:
        return False

    def nodes(self) -> dict[str, NodeState]:
        return {"a": NodeState()}


@pytest.fixture
def file(write, monkeypatch):
    """A file that the broker matches."""
    path = write(SCALED)
    monkeypatch.setattr(BrokerAccess, "read", lambda _self, _wanted: assume_applied(load(path)))
    monkeypatch.setattr(BrokerAccess, "recounted", lambda _self, observed, _queues: observed)
    monkeypatch.setattr(BrokerAccess, "management", lambda _self: NoQueues())
    return path


def test_nothing_to_do(file, run) -> None:
    found = run("scale", file, "--yes")
    assert found.code == 0
    assert "no changes needed" in found.out


@pytest.mark.parametrize(("exchange", "count"), [("ring", 4), ("slots", 2)])
def test_a_dry_run_shows_the_plan_and_its_cost(file, run, exchange, count) -> None:
    found = run("scale", file, "-x", exchange, "--add", "2", "--dry-run", "-v")
    assert found.code == 2
    assert "of its keys" in found.out
    assert f"declare quorum queue '{exchange[0]}.4'" in found.out
    assert run("scale", file, "-x", exchange, "--to", str(count), "--dry-run").code == (count != 4) * 2


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("-x", "ring", "--remove", "r.0"), "queues that gain keys from each other"),
        (("-x", "flat", "--add", "1"), "Give it slots under a new name"),
    ],
)
def test_a_change_without_an_order_of_release_is_refused(file, run, options, reason) -> None:
    found = run("scale", file, *options, "--yes")
    assert found.code == 1
    assert reason in found.err


def test_a_change_of_streams_is_refused(run, write, monkeypatch) -> None:
    path = write(STREAMS)
    monkeypatch.setattr(BrokerAccess, "read", lambda _self, _wanted: assume_applied(load(path)))
    monkeypatch.setattr(BrokerAccess, "recounted", lambda _self, observed, _queues: observed)
    monkeypatch.setattr(BrokerAccess, "management", lambda _self: NoQueues())
    found = run("scale", path, "-x", "events", "--add", "1", "--yes")
    assert found.code == 1
    assert "keys that move between streams: events-0, events-1, events-2, events-3, events-4" in found.err
    assert "use `rabbit-chx apply`" in found.err
    assert "Order: streams keep their messages" in found.out
    assert "as `rabbit-chx scale` does" not in found.out


def test_scale_unbinds_no_queue_whose_keys_exceed_max_moved(file, run) -> None:
    change = ("-x", "ring", "--to", "3", "--dry-run")
    found = run("scale", file, *change, "--max-moved", "20")
    assert found.code == 1
    assert "which exceeds the limit of 20%" in found.err
    assert run("scale", file, *change).code == 2


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--to", "3", "--add", "1", "--yes"), "--to excludes --add and --remove"),
        (("--to", "3", "--yes"), "missing --exchange: ring, slots, flat"),
        (("-x", "ring", "--to", "0", "--yes"), "is not in the range"),
        (("-x", "ring", "--remove", "9", "--yes"), "fewer than the 4 queues of 'ring'"),
        (("--yes", "--amqp-only"), "scale needs the management API"),
        ((), "--yes or --dry-run"),
    ],
)
def test_wrong_usage_is_explained(file, run, options, complaint) -> None:
    found = run("scale", file, *options)
    assert found.code == 64
    assert complaint in found.err


@pytest.mark.parametrize("option", ["--dry-run", "--yes"])
def test_rebalance_needs_the_management_api(file, run, option) -> None:
    found = run("rebalance", file, "--amqp-only", option)
    assert found.code == 64
    assert "--amqp-only cannot list" in found.err


@pytest.fixture
def keys(tmp_path):
    """A sample in which one slot has much more load than the others."""
    path = tmp_path / "keys"
    path.write_text("\n".join(["hot"] * 100 + [f"key-{number}" for number in range(200)]))
    return path


def test_rebalance_asks_before_it_moves_anything(file, run, keys, answer, monkeypatch) -> None:
    monkeypatch.setattr("rabbit_chx.cli.rebalance.carry_out_plans", lambda *_, **__: pytest.fail("moved"))
    assert "--yes or --dry-run" in run.refused("rebalance", file, "-x", "slots", "--keys", keys)
    answer("n\n")
    found = run("rebalance", file, "-x", "slots", "--keys", keys)
    assert found.code == 1
    assert "steps? Steps that unbind or delete something:" in found.err
    assert found.err.endswith("Nothing was changed.\n")
    assert run("rebalance", file, "-x", "slots", "--keys", keys, "--dry-run").out == found.out


def test_rebalance_prints_the_name_of_an_exchange_as_a_file_has_it(run, write, monkeypatch, keys) -> None:
    path = write(SCALED.replace("  slots: {", '  "slots{a}": {', 1))
    monkeypatch.setattr(BrokerAccess, "read", lambda _self, _wanted: assume_applied(load(path)))
    monkeypatch.setattr(BrokerAccess, "management", lambda _self: NoQueues())
    found = run("rebalance", path, "--keys", keys, "--dry-run")
    assert found.code == 2
    assert '"slots{a}": {queues: {' in found.out


def test_the_printed_part_of_the_file_has_the_new_number_of_queues(file, run, monkeypatch) -> None:
    monkeypatch.setattr("rabbit_chx.cli.scale.carry_out_plans", lambda *_, **__: 0)
    found = run("scale", file, "-x", "slots", "--to", "6", "--yes")
    assert found.code == 0
    assert 'queues: {"s.{0..5}": 1}' in found.out
    assert '"s.{0..5}": {' in found.out


def test_a_file_that_is_older_than_the_broker_gets_its_queues(file, run, monkeypatch) -> None:
    more = scaled(scaled(load(file), "ring", to=6), "slots", add=["s.new"])
    monkeypatch.setattr(BrokerAccess, "read", lambda _self, _wanted: assume_applied(more))
    found = run("plan", file)
    assert "queues 'r.4', 'r.5', 's.new': if `scale` added them, the file is older" in found.err
    assert run("scale", file, "--write").code == 0
    found = run("plan", file)
    assert found.code == 0
    assert "only the broker has" not in found.err
    assert "has these queues already" in run("scale", file, "--write").err


def test_a_file_with_queues_that_scale_removed_is_older_than_the_broker(
    file, run, monkeypatch, tmp_path
) -> None:
    fewer = scaled(scaled(load(file), "ring", to=3), "slots", to=2)
    monkeypatch.setattr(BrokerAccess, "read", lambda _self, _wanted: assume_applied(fewer))
    gone = "queues 'r.3', 's.2', 's.3': if `scale` removed them, the file is older than the broker"
    for verb in (("plan", file), ("apply", file, "--dry-run")):
        assert f"only the file has {gone}" in run(*verb).err
    (tmp_path / "keys").write_text("a\nb\n")
    found = run("rebalance", file, "-x", "slots", "--keys", tmp_path / "keys", "--dry-run")
    assert (found.code, found.out) == (64, "")
    assert "no slot with queue 's.2'" in found.err
    assert "The file may be older than the broker: `rabbit-chx scale FILE --write`" in found.err
    assert run("scale", file, "--write").code == 0
    found = run("plan", file)
    assert found.code == 0
    assert "only the" not in found.err


def test_a_file_with_comments_is_not_written_but_the_changes_are_shown(file, run, monkeypatch) -> None:
    more = scaled(load(file), "ring", to=3)
    text = "# ours\n" + Path(file).read_text()
    Path(file).write_text(text)
    monkeypatch.setattr(BrokerAccess, "read", lambda _self, _wanted: assume_applied(more))
    found = run("scale", file, "--write")
    assert found.code == 0
    assert "has comments" in found.err
    assert "r.{0..2}" in found.err
    assert Path(file).read_text() == text
