"""``rabbit-chx scale`` and ``rebalance`` where the broker has other queues than the file: those of an earlier change, or of other programs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rabbit_chx.broker.applying.lock import HOLDER, LOCK
from rabbit_chx.changes.records import ChangeRecord
from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.mirror.ring import Ring
from rabbit_chx.topology.file.load import load
from rabbit_chx.topology.model import Binding, Queue
from rabbit_chx.topology.planning.scaled import scaled
from rabbit_chx.topology.planning.steps import Plan
from rabbit_chx.topology.planning.what_if import assume_applied
from rabbit_chx.working.markers import CHANGES
from tests.unit.conftest import NoQueues
from tests.unit.test_cli_scale import UNFINISHED

OTHERS = """
schema: 1
exchanges:
  orders: {type: x-consistent-hash, queues: {"orders.{0..2}": 1}}
  tenants: {type: x-modulus-hash, slots: 16, queues: {"tenants.{0..2}": 1}}
  empty: {type: x-consistent-hash, queues: {}}
  other: {type: fanout, bindings: [{queue: orders.3}]}
queues:
  "tenants.{0..2}": {preset: ordered}
  "orders.{0..3}": {preset: ordered}
"""
CHANGE = Queue(f"{CHANGES}1", arguments=ChangeRecord(f"{CHANGES}1").arguments)
NEXT = {"orders": "orders.4", "tenants": "tenants.3"}
"""The queue that one more gets, with `OTHERS`."""


@pytest.fixture
def others(write, live):
    """The file, and a function that sets what the broker has: more or fewer queues than the file, after an earlier change."""
    path = write(OTHERS)

    def on_broker(exchange: str = "orders", kept=(), also=(), **change) -> None:
        """A change may have kept queues that were not empty; other programs may have bound some, too."""
        wanted = scaled(load(path), exchange, **change) if change else load(path)
        queues = tuple(queue for queue in load(path).queues if queue.name in kept)
        bindings = (*wanted.bindings, *also)
        live(replace(wanted, queues=(*wanted.queues, *queues), bindings=bindings))

    on_broker()
    return path, on_broker


@pytest.fixture
def interrupted(run, monkeypatch):
    """Begin a change that is interrupted; return the list of what later commands carry out."""

    def interrupted(*verb: object) -> list[Plan]:
        carried_out: list[Plan] = []

        def begin(plan: Plan, *_, exchange: str = "", **__) -> None:
            record = ChangeRecord.of(plan, (), (), (), "me", exchange)
            begun = Queue(record.name, arguments=record.arguments)
            monkeypatch.setattr(NoQueues, "queues", lambda *_: [(begun, 0)])
            raise BrokerUnavailable("the broker is gone")

        monkeypatch.setattr("rabbit_chx.cli.carry_out.carry_out", begin)
        assert run(*verb, "--yes").code == 3
        monkeypatch.setattr(
            "rabbit_chx.cli.carry_out.carry_out", lambda plan, *_, **__: carried_out.append(plan)
        )
        return carried_out

    return interrupted


@pytest.mark.parametrize("exchange", ["orders", "tenants"])
@pytest.mark.parametrize("change", [("--remove", "1"), ("--add", "1"), ("--to", "2"), ("--remove", "{}.2")])
def test_a_queue_that_the_file_does_not_have_is_never_removed(
    others, run, exchange, change, monkeypatch
) -> None:
    monkeypatch.setattr("rabbit_chx.cli.scale.carry_out_plans", lambda *_, **__: pytest.fail("changed"))
    file, on_broker = others
    on_broker(exchange, add=["ext"])
    found = run("scale", file, "-x", exchange, *(each.format(exchange) for each in change), "--yes")
    assert found.code == 1
    assert "got queue 'ext' bound only on the broker" in found.err
    assert "`rabbit-chx scale FILE --write` writes the broker's queues into the file" in found.err
    other = "tenants" if exchange == "orders" else "orders"
    assert "'ext' bound only on the broker" in run("scale", file, "-x", other, "--add", "1", "--dry-run").err


@pytest.mark.parametrize("exchange", ["orders", "tenants"])
@pytest.mark.parametrize("change", [("--add", "1"), ("--remove", "{}.1")])
@pytest.mark.parametrize("is_kept", [True, False], ids=["kept because it was not empty", "gone"])
def test_a_queue_that_only_the_file_has_is_not_bound_silently(others, run, exchange, change, is_kept) -> None:
    file, on_broker = others
    on_broker(exchange, remove=1, kept=[f"{exchange}.2"] * is_kept)
    scale = ("scale", file, "-x", exchange, "--dry-run", "--max-moved", "100")
    found = run(*scale, *(each.format(exchange) for each in change))
    assert found.code == 1
    assert f"got queue '{exchange}.2' bound only in the file" in found.err
    assert run(*scale, "--to", "4").code == 2


def test_a_change_that_is_refused_after_an_earlier_one_is_finished_is_not_printed_for_the_file(
    others, run, monkeypatch
) -> None:
    monkeypatch.setattr("rabbit_chx.cli.scale.print_unfinished", lambda *_: True)
    monkeypatch.setattr("rabbit_chx.cli.scale.carry_out_plans", lambda *_, **__: 0)
    file, on_broker = others
    on_broker("tenants", add=2)
    found = run("scale", file, "-x", "tenants", "--add", "1", "--yes")
    assert found.code == 3
    assert "got queue 'tenants.4' bound only on the broker" in found.err
    assert UNFINISHED in found.err
    assert "Write this into the file" not in found.out + found.err


def test_a_queue_to_which_another_exchange_leads_is_not_announced_as_deleted(others, run) -> None:
    file, on_broker = others
    on_broker(also=[Binding("amq.fanout", "orders.2")])
    found = run("scale", file, "-x", "orders", "--remove", "1", "--dry-run")
    assert found.code == 2
    assert "these are deleted" not in found.out


@pytest.mark.parametrize("exchange", ["orders", "tenants"])
@pytest.mark.parametrize(
    ("change", "reached"),
    [
        (("--remove", "2"), [{"remove": 1}, {"remove": 2}]),
        (("--remove", "{}.2,{}.1"), [{"remove": ["{}.1"]}, {"remove": 2}]),
        (("--add", "new,newer"), [{"add": ["new"]}, {"add": ["new", "newer"]}]),
        (("--add", "2"), [{"add": 1}, {"add": 2}]),
        (("--add", "new", "--remove", "1"), [{"add": ["new"]}, {"remove": 1}, {"add": ["new"], "remove": 1}]),
        (("--to", "1"), [{"to": 2}, {"to": 1}]),
    ],
)
def test_a_repeated_change_finishes_from_wherever_it_was_interrupted(
    others, run, exchange, change, reached
) -> None:
    file, on_broker = others
    for each in reached:
        named = {
            key: [name.format(exchange) for name in value] if isinstance(value, list) else value
            for key, value in each.items()
        }
        on_broker(exchange, **named)
        options = (text.format(exchange, exchange) for text in change)
        found = run("scale", file, "-x", exchange, *options, "--dry-run", "--max-moved", "100")
        assert "bound only" not in found.err, each
        assert found.code in {0, 2}, found.err


def test_the_plan_names_the_queues_that_are_deleted(others, run) -> None:
    file, on_broker = others
    found = run("scale", file, "-x", "orders", "--remove", "1", "--dry-run", "--output", "json")
    assert found.code == 2
    assert "once drained and empty, these are deleted: 'orders.2'" in [row.get("note") for row in found.rows]
    on_broker("orders", add=["ext"])
    found = run("scale", file, "--dry-run")
    assert found.code == 2
    assert "only the broker has queue 'ext': if `scale` added it, the file is older" in found.err
    assert "these are deleted: 'ext'" in found.out


@pytest.mark.parametrize("exchange", ["orders", "tenants"])
def test_a_new_queue_gets_no_name_that_something_else_uses(others, run, exchange) -> None:
    file, on_broker = others
    new, add = NEXT[exchange], ("scale", file, "-x", exchange, "--add", "1", "--dry-run", "-v")
    shown = run(*add).out
    assert f"declare quorum queue '{new}'" in shown
    assert "of its keys" in shown
    on_broker(exchange, add=1)
    assert f"'{new}'" not in run(*add).out  # a repeat: it is there
    on_broker(also=[Binding("amq.fanout", new)])
    stem, number = new.split(".")
    assert f"declare quorum queue '{stem}.{int(number) + 1}'" in run(*add).out


def test_queues_of_an_exchange_without_any_are_declared(others, run) -> None:
    file, _ = others
    found = run("scale", file, "-x", "empty", "--to", "2", "--dry-run", "-v")
    assert found.code == 2
    assert "declare quorum queue 'empty.0'" in found.out
    assert "bind queue 'empty.1'" in found.out


@pytest.mark.parametrize("order", ["unknown", "first", "last"])
def test_write_takes_a_binding_of_another_program_as_it_is(others, run, live, order) -> None:
    """Its weight, its queue, and its place in the ring; a place that is not known is not made up."""
    file, _ = others
    now = load(file).bindings_from("orders")
    new = Binding("orders", "ext", "2")
    ring = Ring.of(
        [(each.destination, each.key) for each in ([new, *now] if order == "first" else [*now, new])]
    )
    if order == "unknown":
        ring = replace(ring, runs=None, why_unknown="its record lacks 'ext'")
    there = replace(load(file), bindings=(*load(file).bindings, new))
    there = replace(there, queues=(*there.queues, Queue("ext", "classic")))
    observed = assume_applied(there)
    observed = replace(observed, rings=observed.rings | {"orders": ring})
    live(observed)
    found = run("scale", file, "--write")
    assert found.code == 0
    assert (
        "exchange 'orders' is written with `order: unknown`: its record lacks 'ext'" in found.err
        or order != "unknown"
    )
    written = load(file)
    assert {each.destination: each.key for each in written.bindings_from("orders")}["ext"] == "2"
    assert written.queue("ext").type == "classic"
    assert run("plan", file).code == 0
    assert written.ring("orders").runs == ring.runs
    assert run("route", "key", "-f", file, "-x", "orders").code == (1 if order == "unknown" else 0)


@pytest.mark.parametrize("known", [True, False])
def test_a_queue_that_was_bound_before_has_no_place_in_the_file_unless_it_is_known(
    others, run, live, known
) -> None:
    file, _ = others
    observed = assume_applied(scaled(load(file), "orders", add=["orders.4"]))
    if not known:
        ring = replace(observed.rings["orders"], runs=None, why_unknown="its record lacks 'orders.4'")
        observed = replace(observed, rings=observed.rings | {"orders": ring})
    live(observed)
    found = run("scale", file, "-x", "orders", "--to", "4", "--yes")
    assert found.code == 0
    assert ("order: unknown" in found.out) is not known
    assert run("scale", file, "-x", "orders", "--to", "4", "--yes", "--write").code == 0
    assert load(file).ring("orders").known is known


def test_rebalance_says_that_the_target_is_missed(others, run, tmp_path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("\n".join(f"k{number % 7}" for number in range(1, 1001)))
    found = run("rebalance", others[0], "-x", "tenants", "--keys", keys, "--dry-run")
    text = " ".join(found.out.split())
    assert (
        "brings it to 1.28; fewer moves cannot. The target is missed: no division of the slots meets it"
        in text
    )
    assert "and the moves are hardly worth it." in text


@pytest.mark.parametrize(
    "verb",
    [
        ("scale", "--yes"),
        ("scale", "--to=4", "--exchange=orders", "--yes"),
        ("rebalance", "--exchange=tenants", "--yes"),
    ],
)
def test_while_another_command_changes_the_queues_nothing_is_changed(others, run, monkeypatch, verb) -> None:
    file, _ = others
    lock = Queue(LOCK, exclusive=True, arguments={HOLDER: "me on host, process 7"})
    monkeypatch.setattr(NoQueues, "queues", lambda *_: [(CHANGE, 0), (lock, 0)])
    monkeypatch.setattr("rabbit_chx.cli.carry_out._RELEASED_IN", 0.0)
    found = run(*verb, file)
    assert (found.code, found.out) == (1, "")
    assert "a change is in progress (me on host, process 7). Nothing was changed." in found.err


@pytest.mark.parametrize("listed", [True, False])
def test_a_lock_that_is_refused_leaves_nothing_to_write_or_to_continue(
    others, run, monkeypatch, listed
) -> None:
    """Two commands at once: the other one has begun its change since this one looked, or has only just taken the lock."""
    file, _ = others
    lock = Queue(LOCK, exclusive=True, arguments={HOLDER: "me"})

    def refused(*_, **__) -> None:
        begun = [(lock, 0), *([(CHANGE, 0)] * listed)]
        monkeypatch.setattr(NoQueues, "queues", lambda *_: begun)
        raise BrokerUnavailable("another apply holds the lock")

    monkeypatch.setattr("rabbit_chx.cli.carry_out.carry_out", refused)
    found = run("scale", file, "-x", "orders", "--to", "4", "--yes")
    assert found.code == 1
    assert "Nothing was changed." in found.err
    assert "Not finished" not in found.err
    assert "Write this into the file" not in found.out


BEGUN = "scale -x orders --add 1"


@pytest.mark.parametrize(
    ("begun", "command"),
    [
        (BEGUN, BEGUN),
        (BEGUN, "scale -x orders --to 6"),
        (BEGUN, "scale"),
        ("scale", "scale -x tenants --add 1"),  # it makes the whole broker match the file
    ],
)
def test_an_interrupted_change_is_finished(others, run, interrupted, begun, command) -> None:
    file, on_broker = others
    if begun == "scale":
        on_broker("orders", to=2)
    finished = interrupted(*begun.split(), file)
    run(*command.split(), file, "--yes")
    assert finished


@pytest.mark.parametrize(
    ("begun", "of", "command"),
    [
        (BEGUN, "exchange 'orders'", "scale -x tenants --add=1"),
        (BEGUN, "exchange 'orders'", "rebalance -x tenants"),
        ("scale", "the whole file", "rebalance -x tenants"),
    ],
)
def test_the_interrupted_change_of_something_else_is_refused_and_its_record_kept(
    others, run, interrupted, begun, of, command
) -> None:
    file, on_broker = others
    if begun == "scale":
        on_broker("orders", to=2)
    finished = interrupted(*begun.split(), file)
    found = run(*command.split(), file, "--yes")
    assert (found.code, finished) == (3, [])
    assert f"Refused: this command cannot finish the interrupted change of {of}" in found.err
    assert UNFINISHED in found.err


@pytest.mark.parametrize("verb", [("scale", "--add", "1"), ("rebalance",)], ids=["scale", "rebalance"])
def test_a_change_whose_record_names_no_exchange_is_finished_by_the_same_command(
    others, run, interrupted, monkeypatch, verb
) -> None:
    """A command of an earlier version began it."""
    with monkeypatch.context() as earlier:
        whole = ChangeRecord.of
        earlier.setattr(ChangeRecord, "of", lambda *given: replace(whole(*given), exchange=None))
        finished = interrupted("scale", others[0], "-x", "tenants", "--add", "1")
    run(*verb, others[0], "-x", "tenants", "--yes")
    assert finished


REBALANCE = ("rebalance", "-x", "tenants", "--keys")


@pytest.mark.parametrize(
    "verb", [("scale", "-x", "tenants", "--add", "1"), REBALANCE], ids=["scale", "rebalance"]
)
@pytest.mark.parametrize("refused", ["declined", "locked"])
def test_after_the_end_of_an_interrupted_change_nothing_else_was_changed(
    others, run, interrupted, answer, keys, monkeypatch, verb, refused
) -> None:
    file, _ = others
    finished = interrupted("scale", file, "-x", "tenants", "--add", "1")
    if refused == "locked":
        lock, begun = Queue(LOCK, exclusive=True, arguments={HOLDER: "another"}), NoQueues.queues(None, "/")

        def second(plan: Plan, *_, **__) -> None:
            if finished:
                monkeypatch.setattr(NoQueues, "queues", lambda *_: [(lock, 0), *begun])
                raise BrokerUnavailable("another apply holds the lock")
            finished.append(plan)

        monkeypatch.setattr("rabbit_chx.cli.carry_out.carry_out", second)
    answer("y\nn\n" if refused == "declined" else "y\ny\n")
    found = run(*verb, *([keys] if verb is REBALANCE else []), file)
    assert (found.code, len(finished)) == (3, 1)
    assert "Nothing else was changed." in found.err
    assert "Nothing was changed." not in found.err
    assert (UNFINISHED in found.err) == (refused == "declined")


@pytest.mark.parametrize("refused", ["declined", "failed"])
def test_an_interrupted_move_without_a_record_is_finished_and_then_no_longer_unfinished(
    others, run, live, answer, keys, tmp_path, monkeypatch, refused
) -> None:
    """`apply` may have been killed while it moved a slot; after the move, the slot has one queue."""
    file, _ = others
    there = assume_applied(load(file))
    pair = (*there.topology.bindings, Binding("tenants.slot.00", "tenants.1", "1"))
    rings = {name: ring for name, ring in there.rings.items() if name != "tenants.slot.00"}
    live(replace(there, topology=replace(there.topology, bindings=pair), rings=rings))
    carried_out: list[Plan] = []

    def carry_out(plan: Plan, *_, **__) -> None:
        carried_out.append(plan)
        if plan.steps:
            live(there)

    monkeypatch.setattr("rabbit_chx.cli.carry_out.carry_out", carry_out)
    answer("y\nn\n")
    found = run(*REBALANCE, keys if refused == "declined" else tmp_path / "missing", file)
    assert found.code == 3, found.err
    assert len(carried_out) == 2
    assert ("Nothing else was changed." if refused == "declined" else "cannot read") in found.err
    assert "Nothing was changed." not in found.err
    assert UNFINISHED not in found.err


def test_a_change_that_was_found_unfinished_stays_so_if_the_broker_goes_away(
    others, run, monkeypatch
) -> None:
    file, _ = others
    monkeypatch.setattr(NoQueues, "queues", lambda *_: [(CHANGE, 0)])

    def gone(*_, **__) -> None:
        monkeypatch.setattr(NoQueues, "queues", gone)
        raise BrokerUnavailable("the broker is gone")

    monkeypatch.setattr("rabbit_chx.cli.carry_out.carry_out", gone)
    found = run("scale", file, "--yes")
    assert (found.code, "the broker is gone" in found.err) == (3, True)
