"""Invalid files: every problem is reported with its position, and all at once."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import pytest

from rabbit_chx.errors import InvalidValue
from rabbit_chx.topology.file.load import load, loads
from rabbit_chx.topology.file.problems import InvalidTopology
from tests.programs import ran


def problems(text: str, format_: str = "yaml") -> list[str]:
    with pytest.raises(InvalidTopology) as caught:
        loads(text, format=format_, name="t")
    return str(caught.value).splitlines()


def problem(text: str, format_: str = "yaml") -> str:
    (only,) = problems(text, format_)
    return only


def test_all_problems_of_a_file_are_reported_in_order():
    found = problems(
        """schema: 1
exchange: {}
exchanges:
  x:
    type: x-consistent-hash
    hash_header: tenant
    queues: {a: 0, gost: 1, 010: 2}
    alternate-exchange: nowhere
  y: {type: fanout, slots: 3}
queues:
  ghost: {type: quorun}
  "a{3..1}": {}
  ghost: {durable: no}
"""
    )
    told = [
        ("t:2:1: ", "Did you mean 'exchanges'?"),
        ("t:6:5: ", "Did you mean 'hash-header'?"),
        ("t:7:17: ", "an integer from 1 to 10000"),
        ("t:7:20: ", "Did you mean 'ghost'?"),
        ("t:7:29: ", "'010'"),
        ("t:8:25: ", "got 'nowhere'"),
        ("t:9:21: ", "x-consistent-hash or x-modulus-hash"),
        ("t:12:3: ", "the lower number first"),
        ("t:13:3: ", "The first is in line 11"),
        ("t:13:20: ", "'no'"),
    ]
    assert len(found) == len(told)
    for line, (place, part) in zip(found, told, strict=True):
        assert line.startswith(place)
        assert part in line


def test_the_error_is_an_invalid_value_and_survives_pickling():
    with pytest.raises(InvalidValue) as caught:
        loads("schema: 2", format="yaml", name="t")
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is InvalidTopology
    assert str(again) == str(caught.value)
    assert again.problems == caught.value.problems


AMBIGUOUS = """
010 1_000 12:30 12:30:45 0x10 0o17 0b1 1e3 1.5e3 +5 .5 5. .inf -.inf .nan 1_0.5 yes No ON off 2024-01-31
"""


@pytest.mark.parametrize("written", [*AMBIGUOUS.split(), "2024-01-31 10:00:00"])
def test_a_plain_scalar_that_readers_of_yaml_read_differently_is_refused(written):
    found = problem(f"schema: 1\nqueues:\n  a: {{arguments: {{n: {written}}}}}")
    assert found.startswith("t:3:22: ")
    assert f"got {written}," in found
    assert f"needs quotes: '{written}'" in found


@pytest.mark.parametrize(
    ("text", "place", "part"),
    [
        ("vhost: /", "t:1:1", "invalid schema: got nothing, expected 1"),
        ("schema: 2", "t:1:9", "got 2, expected 1. A newer schema"),
        ("schema: true", "t:1:9", "got true, expected 1"),
        ("schema: 1.0", "t:1:9", "got 1.0, expected 1"),
        ("schema: '1'", "t:1:9", "without quotes"),
        ("schema: 1\nvhost: [a\nqueues: {}", "t:3:7", "from line 2"),
        ("hello", "t:1:1", "got 'hello', expected a mapping"),
        ("- a", "t:1:1", "got a list, expected a mapping"),
        ("", "t", "The smallest file is `schema: 1`"),
        ("[" * 100_000, "t:1:51", "at most 50 levels"),
        ("- " * 100_000, "t:1:101", "at most 50 levels"),
    ],
)
def test_a_problem_has_a_position(text, place, part):
    found = problem(text)
    assert found.startswith(f"{place}: ")
    assert part in found


@pytest.mark.parametrize(
    ("line", "column", "part"),
    [
        ("vhost:", 7, "Leave the key out"),
        ("vhost: 5", 8, "Put it in quotes"),
        ("queues: [a]", 1, "got a list, expected a mapping. Write each queue as a key"),
        ("exchanges: {x: {}}", 13, "invalid exchanges.x.type: got nothing"),
        ("exchanges: {x: {type: topic, durable: 'true'}}", 39, "without quotes"),
        ("exchanges: {'': {type: topic}}", 13, "default exchange"),
        ("exchanges: {amq.x: {type: topic}}", 21, "begin with amq."),
        ("exchanges: {x: {type: x-consistent-hash, queues: 5}}", 50, "or a list of names"),
        ("queues: {amq.x: {}}", 10, "begin with amq."),
        ("queues: {'': {}}", 10, "an empty name"),
        ('queues: {"a\\nb": {}}', 10, "control character '\\n'"),
        ('vhost: "a\\rb"', 8, "control character '\\r'"),
        ('exchanges: {"a\\u0085b": {type: topic}}', 13, "control character '\\x85'"),
        ('policies: {"\\e[2J": {pattern: a, definition: {b: 1}}}', 12, "control character '\\x1b'"),
        ("queues: {" + "ä" * 128 + ": {}}", 10, "a name of 256 bytes"),
        ("queues: {'" + "a" * 250 + "{000000..000001}': {}}", 10, "a name of 256 bytes"),
        ("queues: {'a{0..10000}': {}}", 10, "10001 names"),
        ("queues: {'a{0..99999999999999999999999999999999}': {}}", 10, "names"),
        ("queues: {'a{0..3}': {}, 'a{2..5}': {}}", 25, "'a{0..3}' declares already"),
        ("queues: {a: {preset: ordered, type: classic}}", 37, "got 'classic', expected quorum"),
        ("queues: {a: {durable: false}}", 23, "always durable"),
        ("queues: {a: {auto-delete: true}}", 27, "x-expires"),
        ("queues: {a: {exclusive: true}}", 14, "an unknown key"),
        ("queues: {a: {arguments: {x-queue-type: quorum}}}", 26, "the key type"),
        ("queues: {a: {arguments: {n: 99999999999999999999}}}", 29, "64-bit"),
        ("policies: {p: {definition: {a: 1}}}", 12, "invalid policies.p.pattern: got nothing"),
        ("policies: {p: {pattern: a, definition: {}}}", 28, "an empty mapping"),
        ("\tqueues: {}", 1, "spaces, not tabs"),
        ("'a\x01b': 1", 3, "printable"),
        ("---\nschema: 1", 1, "a second document"),
        ("vhost: !!str 5", 8, "no tags"),
        ("queues: {a: &a {}, b: {<<: *a}}", 24, "no merge keys"),
        ("queues: {a: &a {arguments: *a}}", 13, "contains itself"),
        ("queues: {a: *b}", 13, "undefined alias"),
        ("queues: {? [a] : {}}", 12, "invalid key"),
        ("queues: {orders.{0..3}: {}}", 17, "invalid YAML"),
        ("queues: {5: {}}", 10, "Put it in quotes: '5'"),
        ("vhost: \ud800", 8, "invalid YAML"),
    ],
)  # fmt: skip
def test_a_problem_of_the_second_line_has_a_position(line, column, part):
    found = problem(f"schema: 1\n{line}")
    assert found.startswith(f"t:2:{column}: ")
    assert part in found


FRAME = """schema: 1
queues: {"q{0..3}": {}, s: {type: stream}}
exchanges:
  t: {type: topic}
  x: {type: """


@pytest.mark.parametrize(
    ("exchange", "part"),
    [
        ("x-consistent-hash, queues: {q0: §10001}", "from 1 to 10000. Use small integers"),
        ("x-consistent-hash, queues: {q0: §'1'}", "without quotes"),
        ("x-consistent-hash, queues: {q0: §true}", "got true"),
        ("x-consistent-hash, queues: [q0, §q0]", "queue 'q0' again"),
        ("x-consistent-hash, queues: {'q{0..3}': 1, §'q{2..3}': 1}", "queue 'q2' again"),
        ("x-consistent-hash, queues: [§q9]", "got 'q9', expected a queue of this file"),
        ("x-consistent-hash, queues: [§5]", "exchanges.x.queues[0]: got 5, expected text"),
        ("x-consistent-hash, destinations: [{exchange: §z}]", "an exchange of this file"),
        ("x-consistent-hash, destinations: [{exchange: §''}]", "The default exchange cannot be bound"),
        ("x-consistent-hash, destinations: [§{weight: 1}]", "got neither"),
        ("x-consistent-hash, destinations: [§{queue: q0, exchange: t}]", "got both"),
        ("x-consistent-hash, destinations: [{queue: q0, §wieght: 1}]", "Did you mean 'weight'?"),
        ("x-consistent-hash, destinations: [{exchange: t}, §{exchange: t}]", "exchange t again"),
        ("x-consistent-hash, queues: [q0], §bindings: []", "one of queues, destinations and bindings"),
        ("x-consistent-hash, bindings: [{queue: q0, key: §1.5}]", "expected text"),
        ("x-consistent-hash, bindings: [{queue: q0, key: §'0'}]", "weight"),
        ("x-consistent-hash, bindings: [§{queue: q0}]", "weight"),
        ("topic, bindings: [{queue: q0}, §{queue: q0}]", "got a duplicate"),
        (f"topic, bindings: [{{queue: q0, key: §{'ä' * 128}}}]", "at most 255 bytes"),
        ("topic, §hash-header: a", "expected x-consistent-hash"),
        ("x-consistent-hsh, §queues: [q0]", "Did you mean 'x-consistent-hash'?"),
        ("topic, §queues: [q0]", "Other types have bindings"),
        ("x-modulus-hash, §hash-property: message_id", "expected x-consistent-hash"),
        ("x-modulus-hash, queues: {q0: §2}", "has no weights"),
        ("x-consistent-hash, hash-header: a, §hash-property: timestamp", "both hash-header and hash-property"),
        ("x-consistent-hash, hash-property: §app_id", "'message_id', 'correlation_id' or 'timestamp'"),
        ("x-consistent-hash, arguments: {hash-property: §app_id}", "message_id, correlation_id, timestamp"),
        ("x-consistent-hash, hash-header: a, arguments: {§hash-header: a}", "both the argument and its shorthand"),
        ("x-consistent-hash, hash-header: §''", "at least one character"),
        ("x-modulus-hash, slots: §0, queues: [q0]", "from 1 to 256"),
        ("x-modulus-hash, slots: §257, queues: [q0]", "from 1 to 256"),
        ("x-modulus-hash, §slots: 64", "slots without queues"),
        ("x-modulus-hash, slots: 64, §destinations: [{queue: q0}]", "both slots and destinations"),
        ("x-modulus-hash, slots: §3, queues: ['q{0..3}']", "3 slots for 4 queues"),
        ("direct, §slots: 64", "x-consistent-hash or x-modulus-hash"),
        ("x-consistent-hash, co-partitioned-with: §x", "another exchange"),
        ("x-consistent-hash, co-partitioned-with: §z", "an exchange of this file"),
        ("x-consistent-hash, co-partitioned-with: §t", "of type 'topic'"),
        ("x-consistent-hash, co-partitioned-with: §5", "a name, or a list of names"),
    ],
)  # fmt: skip
def test_a_problem_of_an_exchange_has_a_position(exchange, part):
    text = FRAME + exchange + "}\n"
    column = text.splitlines()[-1].index("§") + 1
    found = problem(text.replace("§", ""))
    assert found.startswith(f"t:5:{column}: ")
    assert part in found


def test_the_last_of_two_sections_of_one_name_is_checked():
    found = problems("schema: 1\nqueues: {a: {typ: quorum}}\nqueues: {b: {tpye: quorum}}\nexchanges: {x: {}}")
    assert [line.partition(" ")[0] for line in found] == ["t:3:1:", "t:3:14:", "t:4:13:"]


def test_a_slot_must_not_have_the_name_of_an_exchange():
    text = "schema: 1\nqueues: {q: {}}\nexchanges: {x: {type: x-modulus-hash, slots: 64, queues: [q]}, x.slot.07: {type: fanout}}"
    assert "an exchange 'x.slot.07'" in problem(text)


def test_among_many_names_only_the_first_problems_suggest_one():
    unknown = ", ".join(f"order.{number}" for number in range(5_000))
    found = problems(
        f'schema: 1\nqueues: {{"orders.{{0..9999}}": {{}}}}\nexchanges: {{x: {{type: x-consistent-hash, queues: [{unknown}]}}}}'
    )
    assert found[0].endswith("Did you mean 'orders.0'?")
    assert found[99].endswith("Declare it under queues")
    assert found[100:] == ["and 4900 more problems"]


PEAK = """
import sys
from pathlib import Path
from rabbit_chx.topology.file.load import loads
from rabbit_chx.topology.file.problems import InvalidTopology
from tests.programs import peak


def problems(text):
    try:
        loads(text, format="json", name="t")
    except InvalidTopology as error:
        return str(error).splitlines()


problems("[1]")  # what is imported and compiled once is not measured
text = Path(sys.argv[1]).read_text()
before = peak(reset=True)
found = problems(text)
print((peak() - before) >> 10, len(found), found[0], found[-1], sep="\\n")
"""


def peak_of(text, tmp_path):
    """The kilobytes by which a process grows that loads a text, and the number of lines, the first and the last line of its problems."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak is read as on Linux")
    file = tmp_path / "topology.json"
    file.write_text(text)
    grown, *found = ran([sys.executable, "-c", PEAK, str(file)], check=True).stdout.splitlines()
    return int(grown), *found


def test_20_000_problems_of_one_file_take_less_than_200_megabytes(tmp_path):
    row = {"vhost": "/", "destination_type": "queue", "routing_key": "1", "arguments": {}}
    queue = {"vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    names = [f"q.{number:05}" for number in range(20_000)]
    definitions = {
        "rabbit_version": "4.3.6",
        "queues": [queue | {"name": name} for name in names],
        "exchanges": [],
        "bindings": [row | {"source": f"x.{name}", "destination": name} for name in names],
    }
    grown, count, _, last = peak_of(json.dumps(definitions), tmp_path)
    assert (count, last) == ("101", "and 19900 more problems")
    assert grown < 170_000  # about 80,000, in a process of 30,000


def test_of_500_000_duplicate_keys_the_first_hundred_are_reported(tmp_path):
    text = '{"schema": 1, "queues": {' + '"a":0,' * 500_000 + '"b":{}}}'
    grown, count, first, last = peak_of(text, tmp_path)
    assert first.startswith("t:1:32: invalid key 'a': got a duplicate")
    assert (count, last) == ("101", "and 499900 more problems")
    assert grown < 120_000  # about 40,000; with all problems kept, 340,000


def test_a_long_chain_of_exchanges_loads():
    lines = [
        f"  e{number}: {{type: fanout, bindings: [{{exchange: e{number + 1}}}]}}" for number in range(3000)
    ]
    text = "\n".join(["schema: 1", "exchanges:", *lines, "  e3000: {type: fanout}"])
    assert len(loads(text, format="yaml").bindings) == 3000


def test_aliases_that_expand_to_too_many_values_are_refused():
    lines = ["schema: 1", "a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    found = problem("\n".join(lines))
    assert "more than 200000 with aliases expanded" in found


def test_too_many_names_in_ranges_are_refused():
    lines = ["schema: 1", "queues:", *(f"  'a{n}.{{0..9999}}': {{}}" for n in range(11))]
    found = problems("\n".join(lines))
    assert found[-1].startswith("t:13:3: ")
    assert "more than 100000" in found[-1]


@pytest.mark.parametrize(
    ("text", "place", "part"),
    [
        ('{"schema": 1, "vhost": "a", "vhost": "b"}', "t:1:29", "first is in line 1"),
        ('{"schema": 1,\n "queues": {"a": {}, "b": {}, "a": {}}}', "t:2:31", "key 'a'"),
        ('{"schema": 1,\n\t"vhsot": "a"}', "t:2:2", "Did you mean 'vhost'?"),
        ('{"schema": 1,\n "vhost": 5}', "t:2:11", "expected text"),
        # Python 3.13 and later report the comma, earlier ones what follows it.
        ('{"schema": 1,}', "t:1:13" if sys.version_info >= (3, 13) else "t:1:14", "invalid JSON"),
        ('{"schema": 1', "t:1:13", "invalid JSON"),
        ('{"schema": 1} {}', "t:1:15", "extra data"),
        ("", "t:1:1", "The smallest file"),
        ("[]", "t:1:1", "got an empty list, expected a mapping"),
        ('""', "t:1:1", "got '', expected a mapping"),
        ("{}", "t", "got nothing, expected a topology"),
        ('{"a', "t:1:2", "got a syntax error (unterminated string), expected a JSON object"),
        ("[" * 200_000, "t", "at most 50 levels"),
        ('{"a":' * 900 + '{"b": 1, "b": 2}' + "}" * 900, "t", "at most 50 levels"),
        ('{"a":' * 60 + "1" + "}" * 60, "t", "at most 50 levels"),
        ('{"schema": 1, "queues": {"a": {"arguments": {"n": NaN}}}}', "t:1:51", "no infinity or NaN"),
        ('{"schema": 1, "queues": {"a": {"arguments": {"n": 1e999}}}}', "t:1:51", "no infinity or NaN"),
        ('{"schema": ' + "9" * 5000 + "}", "t:1:12", "64-bit"),
        ('{"schema": 1, "vhost": "\\ud800"}', "t:1:24", "lone surrogates"),
        ('{"schema": 1, "queues": {"\\ud800": {}}}', "t:1:26", "lone surrogates"),
    ],
)
def test_a_problem_of_json_has_a_position(text, place, part):
    found = problems(text, "json")[0]
    assert found.startswith(f"{place}: ")
    assert part in found


def of_file(path) -> str:
    with pytest.raises(InvalidTopology) as caught:
        load(path)
    (only,) = caught.value.problems
    assert only.file == str(path)
    return str(only)


def test_files_that_cannot_be_read_are_named(tmp_path):
    assert "No such file" in of_file(tmp_path / "missing.yaml")
    (tmp_path / "folder.yaml").mkdir()
    assert "directory" in of_file(tmp_path / "folder.yaml")
    assert "system says" in of_file("a\0b.yaml")


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "The smallest file"),
        (b"schema: 1\nvhost: \xff", "2:8: invalid encoding"),
        ("schema: 1".encode("utf-16"), "UTF-8"),
        (b"\x7fELF\x02\x01\x01\x00\x00", "printable"),
        (b"#" * ((8 << 20) + 1), "8 MiB"),
    ],
)
def test_files_that_are_not_utf_8_text_are_refused(write, data, part):
    assert part in of_file(write(data))


def test_a_file_name_with_another_suffix_is_refused(write):
    assert "ends in .yaml, .yml, .json" in of_file(write("schema: 1", "topology.txt"))


def test_an_unknown_format_is_refused():
    with pytest.raises(InvalidValue, match="yaml or json"):
        loads("", format="xml")
