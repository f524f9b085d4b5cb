"""``rabbit-chx scale --abort`` and the records of changes: which queues are deleted, and what a stranger's record cannot do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rabbit_chx.changes.records import ChangeRecord
from rabbit_chx.cli.group import _print_problems
from rabbit_chx.cli.verb import Exit
from rabbit_chx.topology.model import Queue
from rabbit_chx.working.markers import CHANGES, RECORD
from tests.unit.conftest import NoQueues

ORDERED = """
schema: 1
exchanges:
  orders: {type: x-consistent-hash, queues: {"orders.{0..1}": 1}}
queues:
  "orders.{0..1}": {preset: ordered}
  spare: {preset: ordered}
"""


class Api(NoQueues):
    """A management API that lists the record of a change."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = Queue(f"{CHANGES}1", "quorum", arguments=record)

    def queues(self, _vhost: str) -> list[tuple[Queue, int]]:
        return [(self.record, 0)]


@pytest.fixture
def abort(write, run, live, monkeypatch):
    """Abort a change that has this record; return what is printed, and the record of what is carried out."""
    carried_out: list[ChangeRecord] = []

    def carry_out(_live, _plans, _output, *, restores, **_) -> Exit:
        carried_out.append(restores)
        return Exit.FINE

    monkeypatch.setattr("rabbit_chx.cli.scale.carry_out_plans", carry_out)

    def abort(record: dict[str, Any], *options: str, text: str = ORDERED):
        path = write(text)
        live(text, Api(record))
        return run("scale", path, "--abort", *options), carried_out

    return abort


def of(*created: str) -> dict[str, Any]:
    return ChangeRecord(f"{CHANGES}1", {}, created).arguments


@pytest.mark.parametrize(("options", "code"), [(("--dry-run",), 2), (("--yes",), 0)])
def test_the_queues_that_it_deletes_are_shown_first(abort, options, code) -> None:
    """Once, neither the plan nor --dry-run named them."""
    found, _ = abort(of("orders.2", "orders.3"), *options)
    assert found.code == code
    assert "once drained and empty, these are deleted: 'orders.{2..3}'" in found.out


def test_only_queues_of_the_file_and_those_that_continue_its_numbering_are_deleted(abort) -> None:
    """Who may declare the queues of records may not delete others by way of an operator."""
    found, (record,) = abort(
        of("orders.0", "orders.2", "spare", "parked", "orders.parked", "payroll.1"), "--yes"
    )
    assert record.created == ("orders.0", "orders.2", "spare")
    assert (
        "queues 'orders.parked', 'parked', 'payroll.1': not deleted, because FILE has no such queue"
        in found.err
    )
    assert "parked" not in found.out


def test_the_queues_that_the_end_of_a_change_deletes_are_shown_first(abort, run, tmp_path) -> None:
    abort(ChangeRecord(f"{CHANGES}1", {}, removed=(Queue("parked"),)).arguments, "--dry-run")
    found = run("scale", tmp_path / "topology.yaml", "--dry-run")
    assert found.code == 2
    assert "once it is finished, and they are empty, these are deleted: 'parked'" in found.err


def test_two_rounds_that_have_moved_keys_are_not_abandoned_but_finished(abort) -> None:
    """The rounds have swapped the queues of two slots."""
    text = ORDERED.replace("queues: {", "slots: 2, queues: {", 1)
    before = {"orders.slot.0": (("orders.1", "1"),), "orders.slot.1": (("orders.0", "1"),)}
    found, carried_out = abort(ChangeRecord(f"{CHANGES}1", before).arguments, "--yes", text=text)
    assert (found.code, carried_out) == (Exit.PARTLY, [])
    assert "queues 'orders.0', 'orders.1', which gain keys from each other" in found.err
    assert found.err.rstrip().endswith("Run the command that began the change again: it finishes the change")


def test_a_record_that_is_none_is_refused_by_its_name(abort) -> None:
    found, carried_out = abort({RECORD: "{}"}, "--yes")
    assert (found.code, carried_out) == (64, [])
    assert f"invalid record of queue '{CHANGES}1'" in found.err
    assert "Delete the queue if no change is running" in found.err


def test_group_shows_members_although_a_record_is_none(capsys) -> None:
    live: Any = SimpleNamespace(management=Api({RECORD: "{}"}))
    assert not _print_problems(live, "/", "billing", [], "table")
    assert "held and unbound queues are not shown: invalid record of queue" in capsys.readouterr().err
