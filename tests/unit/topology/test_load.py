"""What valid files mean, and the JSON Schema of them that is shipped for editors."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from rabbit_chx import ToExchange
from rabbit_chx.errors import MissingDependency
from rabbit_chx.topology.checks.lint import lint
from rabbit_chx.topology.file.load import load, loads
from rabbit_chx.topology.file.names import expand, with_ranges
from rabbit_chx.topology.file.schema import SCHEMA_FILE, json_schema
from rabbit_chx.topology.model import Binding, Exchange, Policy, Queue, Slots, Topology
from rabbit_chx.topology.routes import route
from tests.unit.complaints import complaint

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "topology-file.md"
EXAMPLES = dict(
    re.findall(r"^```(yaml|json)\n(.*?)^```", DOCUMENTATION.read_text(), re.DOTALL | re.MULTILINE)
)


def yaml(text: str) -> Topology:
    return loads("schema: 1\n" + dedent(text), format="yaml")


def test_the_smallest_file_is_an_empty_topology():
    assert yaml("") == loads('{"schema": 1}', format="json") == Topology()


def test_the_example_of_the_documentation_loads_to_what_it_says():
    topology = loads(EXAMPLES["yaml"], format="yaml")
    assert topology.vhost == "shop"
    assert topology.exchange("orders") == Exchange(
        "orders", "x-consistent-hash", arguments={"hash-header": "tenant", "alternate-exchange": "unrouted"}
    )
    assert topology.bindings_from("orders") == (
        *(Binding("orders", f"orders.{number:02}", "1") for number in range(4)),
        Binding("orders", "vip", "3"),
    )
    assert topology.slots == (
        Slots("payments", 64, {"payments.0": 1, "payments.1": 1, "payments.2": 2}, "unrouted"),
    )
    assert topology.bindings_from("amq.topic") == (Binding("amq.topic", ToExchange("events"), "shop.#"),)
    assert topology.policies == (
        Policy("shards", "^logs$", "exchanges", {"shards-per-node": 2, "routing-key": "1234"}),
    )


def test_the_yaml_and_the_json_of_the_documentation_mean_the_same():
    assert loads(EXAMPLES["yaml"], format="yaml") == loads(EXAMPLES["json"], format="json")


@pytest.mark.parametrize("suffix", [".yaml", ".yml", ".YAML", ".json"])
def test_the_suffix_of_a_file_determines_its_format(write, suffix):
    text = '{"schema": 1, "vhost": "v"}' if suffix == ".json" else "schema: 1\nvhost: v"
    path = write(text, f"topology{suffix}")
    assert load(path).vhost == load(str(path)).vhost == "v"


def test_a_byte_order_mark_of_utf_8_is_no_part_of_the_text(write):
    assert load(write(b'\xef\xbb\xbf{"schema": 1, "vhost": "v"}', "topology.json")).vhost == "v"


SINGLE = Queue("a", "quorum", arguments={"x-single-active-consumer": True})
ORDERED = Queue("a", "quorum", arguments={"x-single-active-consumer": True, "x-delivery-limit": -1})
LIMITED = Queue("a", "quorum", arguments={"x-single-active-consumer": True, "x-delivery-limit": 9})


@pytest.mark.parametrize(
    ("written", "queue"),
    [
        ("{}", Queue("a", "quorum")),
        ("", Queue("a", "quorum")),
        ("{type: classic, durable: false, auto-delete: true}", Queue("a", durable=False, auto_delete=True)),
        ("{type: stream}", Queue("a", "stream")),
        ("{preset: ordered}", ORDERED),
        ("{single-active-consumer: true}", SINGLE),
        ("{type: quorum, preset: ordered}", ORDERED),
        ("{preset: ordered, arguments: {x-delivery-limit: 9}}", LIMITED),
    ],
)
def test_a_queue_is_a_quorum_queue_unless_it_says_otherwise(written, queue):
    topology = yaml(f"queues: {{shared: &it {written or '{}'}, a: *it, b: {written}}}")
    assert topology.queues == tuple(replace(queue, name=name) for name in ("shared", "a", "b"))


def test_a_list_of_queues_gives_each_the_weight_1_in_bind_order():
    topology = yaml(
        "queues: {'q{0..2}': {}}\nexchanges: {x: {type: x-consistent-hash, queues: [q2, 'q{0..1}']}}"
    )
    assert topology.bindings == (Binding("x", "q2", "1"), Binding("x", "q0", "1"), Binding("x", "q1", "1"))
    assert topology.ring("x").bucket_map == ("q2", "q0", "q1")


def test_destinations_may_be_queues_and_exchanges_and_modulus_hash_has_empty_keys():
    topology = yaml(
        """
        exchanges:
          x: {type: x-consistent-hash, destinations: [{exchange: y}, {queue: "q{0..1}", weight: 2}]}
          y: {type: x-modulus-hash, queues: [q1]}
        queues: {"q{0..1}": {}}"""
    )
    assert topology.bindings == (
        Binding("x", ToExchange("y"), "1"),
        Binding("x", "q0", "2"),
        Binding("x", "q1", "2"),
        Binding("y", "q1"),
    )


def test_bindings_say_what_the_short_forms_cannot():
    topology = yaml(
        """
        queues: {q: {}}
        exchanges:
          h: {type: headers, bindings: [{queue: q, arguments: {x-match: all, n: 1, f: 1.5, t: true, v: null}}]}
          x: {type: x-consistent-hash, bindings: [{queue: q, key: "007", arguments: {note: kept}}, {queue: q, key: "2"}]}
        """
    )
    assert topology.bindings == (
        Binding("h", "q", "", {"x-match": "all", "n": 1, "f": 1.5, "t": True, "v": None}),
        Binding("x", "q", "007", {"note": "kept"}),
        Binding("x", "q", "2"),
    )


def test_co_partitioned_exchanges_are_pairs():
    kind = "{type: x-consistent-hash"
    topology = yaml(
        f"exchanges: {{a: {kind}, co-partitioned-with: [b, c]}}, b: {kind}, co-partitioned-with: c}}, c: {kind}}}}}"
    )
    assert topology.co_partitioned == (("a", "b"), ("a", "c"), ("b", "c"))


def test_exchanges_may_be_bound_in_a_cycle_as_in_the_broker():
    topology = yaml(
        """
        exchanges:
          a: {type: fanout, bindings: [{exchange: b}, {exchange: a}]}
          b: {type: fanout, bindings: [{exchange: amq.fanout}, {queue: q}]}
          amq.fanout: {bindings: [{exchange: a}]}
        queues: {q: {}}"""
    )
    assert [finding for finding in lint(topology) if finding.severity == "error"] == []
    assert route(topology, "a") == route(topology, "b") == ("q",)


PLAIN = {"1": 1, "-1": -1, "0": 0, "1.5": 1.5, "1.0e+3": 1000.0, "true": True, "False": False, "~": None}
PLAIN |= {f"'{text}'": text for text in ("010", "no", "12:30", "1e3", "~", "2024-01-01")}
PLAIN |= {text: text for text in ("1.2.3", "a:b", "10.0.0.1", "x", "0.1-rc", "y", "3d")}


@pytest.mark.parametrize(("written", "value"), PLAIN.items())
def test_plain_scalars_that_all_readers_read_alike_are_taken(written, value):
    found = yaml(f"queues: {{a: {{arguments: {{n: {written}}}}}}}").queues[0].arguments["n"]
    assert (found, type(found)) == (value, type(value))


def test_json_may_be_indented_with_tabs_and_spell_characters_as_pairs():
    text = '{\n\t"schema":\t1,\n\t"vhost": "\\ud83d\\ude00\\/"}'
    assert loads(text, format="json").vhost == "\U0001f600/"


@pytest.mark.parametrize(
    ("package", "format_"), [("pydantic", "json"), ("pydantic", "yaml"), ("yaml", "yaml")]
)
def test_a_missing_package_is_named_with_the_line_that_installs_it(monkeypatch, package, format_):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(MissingDependency, match=r"pip install 'rabbit-chx\[topology\]'"):
        loads("schema: 1" if format_ == "yaml" else json.dumps({"schema": 1}), format=format_)


def test_yaml_is_read_alike_where_pyyaml_comes_without_its_c_library(monkeypatch):
    with_it = loads(EXAMPLES["yaml"], format="yaml")
    monkeypatch.delattr("yaml.CSafeLoader", raising=False)
    assert loads(EXAMPLES["yaml"], format="yaml") == with_it


# -- ranges of names


@pytest.mark.parametrize(
    ("name", "members"),
    [
        ("orders", ("orders",)),
        ("orders.{00..03}", ("orders.00", "orders.01", "orders.02", "orders.03")),
        ("{8..10}", ("8", "9", "10")),
        ("a{08..10}b", ("a08b", "a09b", "a10b")),
        ("a{7..7}", ("a7",)),
        ("a{000..001}", ("a000", "a001")),
        ("{{id}}", ("{id}",)),
        ("{{{1..2}}}", ("{1}", "{2}")),
        ("{{1..2}}", ("{1..2}",)),
        ("", ("",)),
    ],
)
def test_a_range_expands_in_numeric_order(name, members):
    assert expand(name) == members


@pytest.mark.parametrize("width", [1, 2, 3])
def test_numbers_that_outgrow_their_zeros_are_written_so_that_they_expand_to_themselves(width):
    names = [f"orders.{number:0{width}}" for number in range(1_101)]
    written = [name for name, _ in with_ranges((name, 1) for name in names)]
    assert [name for each in written for name in expand(each)] == names
    assert len(written) < 5


MALFORMED = "a{0..3 a} {} {0..} {a..b} {0...3} {0..1}{0..1} {-1..2} {0..1_0} {\u0660..\u0663}"


@pytest.mark.parametrize("name", [*MALFORMED.split(), "{ 0..3}"])
def test_a_malformed_range_is_refused(name):
    assert "{{" in complaint(lambda: expand(name)).hint


@pytest.mark.parametrize("name", ["a{3..1}", "a{00..5}", "a{0..05}", "a{000..10}"])
def test_a_range_has_its_lower_number_first_and_one_width(name):
    assert "range" in complaint(lambda: expand(name)).what


def test_a_number_that_no_name_can_hold_is_not_converted():
    refused = complaint(lambda: expand(f"a{{0..{'9' * 5_000}}}"))
    assert (refused.what, refused.expected) == ("range of names", "numbers of at most 255 digits")
    assert len(str(refused)) < 200


# -- the JSON Schema


def test_the_shipped_schema_is_the_one_of_the_code():
    # Where it is not: python -m rabbit_chx.topology.file.schema > rabbit_chx/topology/file/topology.schema.json
    assert SCHEMA_FILE.read_text() == json_schema()


def test_every_key_is_explained_and_no_other_is_allowed():
    schema = json.loads(SCHEMA_FILE.read_text())
    for each in [schema, *schema["$defs"].values()]:
        assert each["additionalProperties"] is False
        for name, key in each["properties"].items():
            assert key["description"].endswith("."), name


def test_the_type_of_an_exchange_is_required_except_of_the_brokers_own():
    schema = json.loads(SCHEMA_FILE.read_text())
    assert schema["$defs"]["FileExchange"]["required"] == ["type"]
    predeclared = schema["properties"]["exchanges"]["patternProperties"][r"^amq\."]
    assert list(predeclared["properties"]) == ["bindings"]
