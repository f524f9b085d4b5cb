"""``rabbit-chx scale`` without changes to a broker: invalid usage, refused plans, dry runs, and the printed file."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from rabbit_chx.cli.ask.broker_access import BrokerAccess
from rabbit_chx.cli.verb import Exit
from rabbit_chx.errors import BrokerUnavailable, InvalidValue
from rabbit_chx.topology.file.definitions import to_definitions
from rabbit_chx.topology.file.load import load
from rabbit_chx.topology.model import Queue, Topology
from rabbit_chx.topology.planning.scaled import scaled
from rabbit_chx.topology.planning.what_if import assume_applied
from rabbit_chx.working.markers import CHANGES, HOLDS
from tests.unit.conftest import NoQueues
from tests.verbs import ORDERS, SCALED


@pytest.fixture
def file(write, live):
    """A file that the broker matches."""
    live(SCALED)
    return write(SCALED)


def test_scale_unbinds_no_queue_whose_keys_exceed_max_moved(file, run) -> None:
    change = ("-x", "ring", "--to", "3", "--dry-run")
    found = run("scale", file, *change, "--max-moved", "20")
    assert found.code == 1
    assert "which exceeds the limit of 20%" in found.err
    assert "choose another strategy (`rabbit-chx apply --strategy`), raise --max-moved, or" in found.err
    assert "use `rabbit-chx apply --force`, which does not drain queues" in found.err
    assert run("scale", file, *change).code == 2


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("scale --to 3 --add 1 --yes", "--to cannot be combined with --add and --remove"),
        ("scale --to 3 --yes", "--exchange is required: the file has ring and slots and flat"),
        ("scale -x ring --to 0 --yes", "is not in the range"),
        ("scale -x ring --remove 9 --yes", "fewer than the 4 queues of 'ring'"),
        ("scale --yes --amqp-only", "scale needs the management API"),
        ("scale", "--yes or --dry-run"),
        *(
            (f"scale -x ring --yes {other}", "--exchange has no effect on a change without --to, --add and")
            for other in ("", "--write", "--status", "--abort")
        ),
        ("rebalance --amqp-only --dry-run", "--amqp-only cannot list"),
        ("rebalance --amqp-only --yes", "--amqp-only cannot list"),
    ],
)
def test_wrong_usage_is_explained(file, run, command, complaint) -> None:
    verb, *options = command.split()
    assert complaint in run.refused(verb, file, *options)


def test_rebalance_asks_before_it_moves_anything(file, run, keys, answer, monkeypatch) -> None:
    monkeypatch.setattr("rabbit_chx.cli.rebalance.carry_out_plans", lambda *_, **__: pytest.fail("moved"))
    assert "--yes or --dry-run" in run.refused("rebalance", file, "-x", "slots", "--keys", keys)
    answer("n\n")
    found = run("rebalance", file, "-x", "slots", "--keys", keys)
    assert found.code == 1
    assert "steps? Steps that unbind or delete something:" in found.err
    assert found.err.endswith("Nothing was changed.\n")
    assert run("rebalance", file, "-x", "slots", "--keys", keys, "--dry-run").out == found.out


def test_a_measurement_without_a_message_in_its_predicted_queue_says_so(file, run, monkeypatch) -> None:
    """The file may name another header to hash than the broker has, for example."""
    message = SimpleNamespace(keys=("k",), headers={}, properties={}, queues=("other",), exchange="slots")
    monkeypatch.setattr("rabbit_chx.cli.slot_load.sample", lambda *_, **__: [message] * 3)
    monkeypatch.setattr("rabbit_chx.cli.slot_load._Watch.check_tracing", lambda _: None)
    monkeypatch.setattr(BrokerAccess, "amqp", lambda *_, **__: nullcontext())
    found = run("rebalance", file, "-x", "slots", "--dry-run")
    assert found.code == 64
    assert (
        "expected messages that reach the predicted queue. 3 messages did not: `rabbit-chx parity`"
        in found.err
    )


@pytest.mark.parametrize("target", ["1", "nan", "inf"])
def test_rebalance_refuses_a_target_before_it_asks_the_broker(file, run, target, monkeypatch) -> None:
    monkeypatch.setattr(BrokerAccess, "read", lambda *_: pytest.fail("it has asked"))
    complaint = run.refused("rebalance", file, "-x", "slots", "--target", target, "--dry-run")
    assert "expected a number greater than 1" in complaint


def test_rebalance_parts_no_pair_that_must_be_partitioned_alike(run, write, live, keys) -> None:
    pair = (
        '  other: {type: x-consistent-hash, slots: 16, queues: {"f.{0..3}": 1}, co-partitioned-with: slots}\n'
    )
    file = write(SCALED.replace("  flat:", f"{pair}  flat:"))
    live(load(file))
    for exchange in ("slots", "other"):
        complaint = run.refused("rebalance", file, "-x", exchange, "--keys", keys, "--dry-run")
        assert "'other' and 'slots' must send a key to queues of the same number" in complaint


def test_rebalance_prints_the_name_of_an_exchange_as_a_file_has_it(run, write, live, keys) -> None:
    path = write(SCALED.replace("  slots: {", '  "slots{a}": {', 1))
    live(load(path))
    found = run("rebalance", path, "--keys", keys, "--dry-run")
    assert found.code == 2
    assert '"slots{a}": {queues: {' in found.out


@pytest.mark.parametrize("change", [(), ("-x", "slots", "--to", "4")])
def test_nothing_is_to_be_written_into_a_file_that_has_these_queues(file, run, change) -> None:
    found = run("scale", file, *change, "--yes")
    assert found.code == 0
    assert "has these queues already: no changes needed" in found.out
    assert "exchanges:" not in found.out


@pytest.mark.parametrize("output", ["table", "json"])
@pytest.mark.parametrize(
    ("code", "is_printed"), [(Exit.FINE, True), (Exit.PARTLY, True), (Exit.FAILED, False)]
)
def test_the_part_of_the_file_is_printed_only_if_something_was_changed(
    file, run, monkeypatch, output, code, is_printed
) -> None:
    monkeypatch.setattr("rabbit_chx.cli.scale.carry_out_plans", lambda *_, **__: code)
    found = run("scale", file, "-x", "slots", "--to", "6", "--yes", "--output", output)
    assert found.code == code
    text = found.out.replace('\\"', '"')
    assert ('queues: {"s.{0..5}": 1}' in text) == ('"s.{0..5}": {' in text) == is_printed


def test_a_file_that_is_older_than_the_broker_gets_its_queues(file, run, live) -> None:
    more = scaled(scaled(load(file), "ring", to=6), "slots", add=["s.new"])
    live(more)
    found = run("plan", file)
    assert "queues 'r.4', 'r.5', 's.new': if `scale` added them, the file is older" in found.err
    assert run("scale", file, "--write").code == 0
    found = run("plan", file)
    assert found.code == 0
    assert "only the broker has" not in found.err
    assert "has these queues already" in run("scale", file, "--write").err


def test_a_file_with_queues_that_scale_removed_is_older_than_the_broker(file, run, live, tmp_path) -> None:
    fewer = scaled(scaled(load(file), "ring", to=3), "slots", to=2)
    live(fewer)
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


@pytest.mark.parametrize("verb", [("plan",), ("apply", "--dry-run"), ("check",)])
@pytest.mark.parametrize("name", [f"{HOLDS}1.2", f"{CHANGES}1"])
def test_an_unfinished_change_is_named_before_other_bindings_change(
    file, run, monkeypatch, verb, name
) -> None:
    text = "a change by `scale` or `rebalance` is unfinished"
    assert text not in run(verb[0], file, *verb[1:]).err
    monkeypatch.setattr(NoQueues, "queues", lambda *_: [(Queue(name), 0)])
    found = run(verb[0], file, *verb[1:])
    assert found.code == 0
    assert text in found.err


@pytest.mark.parametrize("option", ["--status", "--abort", "--to=6"])
def test_a_silent_node_is_named_before_anything_is_asked_that_waits_for_it(
    file, run, monkeypatch, option
) -> None:
    def silent(*_: object) -> None:
        raise BrokerUnavailable("a node of the cluster is silent")

    monkeypatch.setattr(NoQueues, "nodes", silent)
    monkeypatch.delattr(NoQueues, "queues")
    monkeypatch.delattr(NoQueues, "bindings")
    found = run("scale", file, "--yes", option, *(["-x", "ring"] if "=" in option else []))
    assert (found.code, found.out) == (1, "")
    assert "a node of the cluster is silent" in found.err


def test_a_file_with_comments_is_not_written_but_the_changes_are_shown(file, run, live) -> None:
    more = scaled(load(file), "ring", to=3)
    text = "# ours\n" + Path(file).read_text()
    Path(file).write_text(text)
    live(more)
    found = run("scale", file, "--write")
    assert found.code == 0
    assert "has comments" in found.err
    assert "r.{0..2}" in found.err
    assert Path(file).read_text() == text


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_the_written_file_keeps_the_path_of_its_schema(run, write, live, form) -> None:
    with_schema = {"$schema": "topology.schema.json", **yaml.safe_load(SCALED)}
    file = write(json.dumps(with_schema), f"topology.{form}")
    more = scaled(load(file), "ring", to=3)
    live(more)
    found = run("scale", file, "--write")
    assert (found.code, "is written" in found.err) == (0, True), found.err
    assert yaml.safe_load(Path(file).read_text())["$schema"] == "topology.schema.json"
    assert load(file) == more


def test_a_number_sign_inside_a_value_is_no_comment(file, run, live) -> None:
    topic = "  topic: {type: topic, bindings: [{queue: r.0, key: 'order.#'}, {queue: r.1, key: \"a #b\"}, {queue: r.1, key: c#}]}\n"
    text = Path(file).read_text().replace("exchanges:\n", f"exchanges:\n{topic}")
    Path(file).write_text(text)
    live(scaled(load(file), "ring", to=3))
    found = run("scale", file, "--write")
    assert (found.code, "is written" in found.err) == (0, True), found.err
    assert "order.#" in Path(file).read_text()


UNFINISHED = "the interrupted change is unfinished. Run the command that began the change again: it finishes the change"


@pytest.mark.parametrize("unfinished", [True, False])
def test_a_command_that_cannot_finish_the_change_of_another_one_names_that(
    file, run, live, monkeypatch, keys, unfinished
) -> None:
    """Killed while it pointed slot 0 from s.0 to s.1; by the file, a third queue gets the slot."""
    state = assume_applied(load(file))
    to = {"slots.slot.00": ["s.0", "s.1"], "slots.slot.02": ["s.0"]}
    bindings = [
        replace(each, destination=queue)
        for each in state.topology.bindings
        for queue in to.get(each.source, [each.destination])
    ]
    rings = {name: ring for name, ring in state.rings.items() if name not in to}
    state = replace(state, topology=replace(state.topology, bindings=tuple(bindings)), rings=rings)
    live(state)
    for verb in ("scale", "rebalance"):
        monkeypatch.setattr(f"rabbit_chx.cli.{verb}.print_unfinished", lambda *_: unfinished)
        monkeypatch.setattr(f"rabbit_chx.cli.{verb}.carry_out_plans", lambda *_, **__: 0)
    found = run("scale", file, "--yes")
    assert found.code == (3 if unfinished else 1)
    assert "which gain keys from each other" in found.err
    assert (UNFINISHED in found.err) is unfinished
    older = scaled(load(file), "slots", remove=["s.3"], add=["s.new"])
    live(older)
    found = run("rebalance", file, "-x", "slots", "--keys", keys, "--yes")
    assert found.code == (3 if unfinished else 64)
    assert "The file may be older than the broker" in found.err
    assert (UNFINISHED in found.err) is unfinished


# ---- options without an effect, and what is left when a file or a virtual host fails


@pytest.mark.parametrize("verb", ["scale", "plan"])
@pytest.mark.parametrize("option", ["--add", "--remove"])
@pytest.mark.parametrize("value", ["", "0", "00", "a,,b", ","])
def test_no_queues_and_queues_without_a_name_are_refused(file, run, verb, option, value) -> None:
    complaint = run.refused(verb, file, "-x", "ring", option, value, *["--yes"] * (verb == "scale"))
    expected = "a number of queues from 1, or their names (a,b)"
    assert f"invalid {option}: got {value!r}, expected {expected}" in complaint


def test_a_dry_run_does_not_write_the_file_but_shows_the_changes(file, run, live) -> None:
    more, text = scaled(load(file), "ring", to=3), Path(file).read_text()
    live(more)
    found = run("scale", file, "--write", "--dry-run")
    assert found.code == 2
    assert f"{file} would be written" in found.err
    assert "r.{0..2}" in found.err
    assert Path(file).read_text() == text
    assert run("scale", file, "--write").code == 0
    assert run("scale", file, "--write", "--dry-run").code == 0


def _definitions(write, *vhosts: str) -> Path:
    """Definitions of a broker, as RabbitMQ exports them."""
    one = to_definitions(load(write(ORDERS, "orders.yaml")))
    parts = ("exchanges", "queues", "bindings")
    many = {part: [each | {"vhost": vhost} for vhost in vhosts for each in one[part]] for part in parts}
    return write(json.dumps(one | many | {"vhosts": [{"name": vhost} for vhost in vhosts]}), "defs.json")


@pytest.mark.parametrize("vhosts", [("/",), ("a", "b")])
def test_definitions_are_refused_before_the_broker_is_changed(run, write, monkeypatch, vhosts) -> None:
    monkeypatch.setattr("rabbit_chx.cli.scale.carry_out_plans", lambda *_, **__: pytest.fail("changed"))
    for change in (("--yes",), ("-x", "orders", "--to", "3", "--yes")):
        complaint = run.refused("scale", _definitions(write, *vhosts), "--write", *change)
        assert "expected a topology file, not definitions of a broker" in complaint


def test_what_to_write_is_printed_if_the_file_cannot_be_written(file, run, monkeypatch) -> None:
    def refuses(path: str, _text: str, *, option: str) -> None:
        raise InvalidValue(option, path, "a file that can be written")

    monkeypatch.setattr("rabbit_chx.cli.carry_out.carry_out", lambda *_, **__: None)
    monkeypatch.setattr("rabbit_chx.cli.show.file_writer.replace_file", refuses)
    found = run("scale", file, "-x", "slots", "--to", "6", "--write", "--yes")
    assert found.code == Exit.PARTLY
    assert "expected a file that can be written" in found.err
    assert 'queues: {"s.{0..5}": 1}' in found.out


def test_a_virtual_host_that_fails_after_another_was_changed_leaves_the_work_partly_done(
    run, write, live, monkeypatch
) -> None:
    def read(_self, wanted):
        if wanted.vhost == "b":
            raise BrokerUnavailable("the management API refused virtual host 'b'")
        return assume_applied(Topology(vhost="a"))

    live(ORDERS)
    monkeypatch.setattr(BrokerAccess, "read", read)
    monkeypatch.setattr("rabbit_chx.cli.carry_out.carry_out", lambda *_, **__: None)
    found = run("scale", _definitions(write, "a", "b"), "--yes")
    assert found.code == Exit.PARTLY
    assert "refused virtual host 'b'" in found.err


@pytest.mark.usefixtures("empty_broker")
def test_after_a_no_to_the_second_virtual_host_nothing_else_was_changed(run, write, answer) -> None:
    answer("y\nn\n")
    found = run("apply", _definitions(write, "a", "b"))
    assert (found.code, found.err.endswith("Nothing else was changed.\n")) == (Exit.PARTLY, True), found.err
