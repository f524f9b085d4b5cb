"""The command line as a user meets it: where keys land, what is refused and how, pipes and exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata

import pytest

from rabbit_chx import Ring
from rabbit_chx.base.text import without_secrets
from rabbit_chx.cli.ask.described import Located
from rabbit_chx.cli.file_routes import FileRoutes, is_alone
from rabbit_chx.cli.ring import _rows
from rabbit_chx.topology.model import Binding, Exchange, Queue, Topology
from tests.programs import loaded_after
from tests.unit.test_management import NODES, serving
from tests.verbs import EVENTS, ORDERS, SLOTS, in_a_process

TWO = ("-q", "q0", "-q", "q1")
JSON = ("--output", "json")


# ---- route, ring and the ways to give keys


def test_explain_shows_the_evidence(run) -> None:
    # phash2(<<"customer-42">>) as Erlang prints it
    text = run("route", "customer-42", "k", *TWO, "--explain").out
    assert '<<"customer-42">>' in text
    assert text.count("\n\nkey:") == 1
    (line,) = run("route", "customer-42", *TWO, "--explain", *JSON).rows
    assert (line["hash"], line["seed"]) == (66013791, 66013791 % 2**21)


def test_bytes_of_a_header_that_are_not_utf8_keep_their_value(run) -> None:
    hashed = ("--hash-header", "h", *TWO, "--release", "4.3", *JSON)
    (as_key,) = run("route", "\udcff", "--explain", *hashed).rows
    (as_header,) = run("route", "--header", "h=\udcff", "--explain", *hashed).rows
    (in_file, _) = run("route", "--keys", "-", "--raw", *hashed, stdin=b"\xff\nplain\n").rows
    assert as_key["hashed"] == as_header["hashed"] == "<<255>>"
    assert in_file["bucket"] == as_key["bucket"]


def test_a_ring_without_buckets_leaves_the_route_to_its_alternate_exchange() -> None:
    topology = Topology(
        exchanges=(
            Exchange("x", "x-consistent-hash", arguments={"alternate-exchange": "ae"}),
            Exchange("ae", "fanout"),
        ),
        queues=(Queue("q"), Queue("lost")),
        bindings=(Binding("x", "q", "2"), Binding("ae", "lost")),
    )
    dead = Ring.of(["q"]).bind("q", 2).unbind("q", 1)
    at = Located(topology, "x", dead.release, {"x": dead})
    assert not is_alone(at)
    assert FileRoutes(at).answer("k", {}, None).end == "lost"
    assert is_alone(Located(topology, "x", dead.release, {"x": Ring.of(["q"])}))


def test_keys_from_a_file_a_pipe_and_arguments_agree(run, write) -> None:
    keys = [f"key-{i}" for i in range(50)] + ["", "ключ", "a b"]
    text = "\n".join(keys)
    from_file = run("route", "--keys", write(text, "keys"), *TWO, *JSON).rows
    from_pipe = run("route", "--keys", "-", *TWO, *JSON, stdin=text.encode()).rows
    assert from_file == from_pipe == run("route", *keys, *TWO, *JSON).rows
    assert [line["key"] for line in from_file] == keys


def test_line_ends_of_either_system_are_no_part_of_a_key(run) -> None:
    unix = run("route", "--keys", "-", *TWO, stdin=b"a\nb\n\nc\n").out
    assert unix == run("route", "--keys", "-", *TWO, stdin=b"a\r\nb\r\n\r\nc\r\n").out
    assert unix.count("\n") == 4


def test_a_byte_order_mark_is_no_part_of_a_key(run) -> None:
    mark = "\ufeff".encode()
    (row,) = run("route", "--keys", "-", *TWO, *JSON, stdin=mark + b"a\n").rows
    assert row["key"] == "a"
    assert "an empty file" in run.refused("route", "--keys", "-", *TWO, stdin=mark)
    (kept,) = run("route", "--keys", "-", "--raw", *TWO, *JSON, stdin=mark + b"a\n").rows
    assert kept["key"] == "\ufeffa"


def test_raw_keys_may_be_any_bytes(run) -> None:
    (first, second) = run("route", "--keys", "-", "--raw", *TWO, *JSON, stdin=b"\xff\xfe\nplain\r\n").rows
    assert first["key_base64"] == "//4="
    assert second["key"] == "plain\r"


def test_ring_shows_shares_and_that_a_mnesia_restart_is_unknown(run) -> None:
    rows = run("ring", *TWO, "--release", "4.0", *JSON).rows
    assert [row["queue"] for row in rows] == ["q0", "q1"]
    assert sum(row["share"] for row in rows) == 1.0
    assert all(row["first_bucket_after_restart"] is None for row in rows)
    assert "unknown" in run("ring", *TWO, "--release", "4.0").out


def test_ring_shows_a_queue_to_which_a_restart_gives_buckets() -> None:
    ring = Ring.of({"qa": 1, "qb": 1, "qc": 1}).bind("qa", 5).unbind("qa", 1)
    rows = _rows(ring, ring.after_restart())
    assert [
        (name, row["weight"], row["first_bucket"], row["first_bucket_after_restart"])
        for name, row in rows.items()
    ] == [
        ("qb", 1, 0, 0),
        ("qc", 1, 1, 1),
        ("qa", 5, None, 2),
    ]
    assert [row["share"] for row in rows.values()] == [pytest.approx(0.5, abs=0.001)] * 2 + [0.0]


@pytest.mark.parametrize(
    ("keys", "hashed"),
    [
        ([f"k{i}" for i in range(200)], ()),
        (range(1_700_000_000, 1_700_000_200), ("--hash-property", "timestamp")),
    ],
)
def test_ring_infers_the_order_from_pairs(run, write, keys, hashed) -> None:
    routed = run("route", *keys, "-q", "b=2", "-q", "a", "-q", "c", *hashed, *JSON).rows
    lines = [f"{line['key']},{line['queue']}\n" for line in routed]
    pairs = write("".join(["key,queue\n", *lines]), "pairs.csv")
    rows = run("ring", "--infer", pairs, "-q", "a", "-q", "b=2", "-q", "c", *hashed, *JSON).rows
    assert [row["queue"] for row in rows] == ["b", "a", "c"]
    marked = write("".join(["\ufeffkey,queue\n", *lines]), "marked.csv")
    assert run("ring", "--infer", marked, "-q", "a", "-q", "b=2", "-q", "c", *hashed, *JSON).rows == rows
    refused = run("ring", "--infer", write("a,q0\na,q1\n", "pairs.csv"), *TWO)
    assert refused.code == 1
    assert "'a' (seen at 'q0') and 'a' (seen at 'q1')" in refused.err


# ---- through a topology file


def test_a_ring_of_a_file_answers_as_the_queues_on_the_command_line_do(run, write) -> None:
    keys, file = [f"k{number}" for number in range(40)], write(ORDERS)
    by_file = run("route", *keys, "--file", file, *JSON)
    by_queues = run("route", *keys, "-q", "q.0", "-q", "q.1", "-q", "q.2", "-q", "vip=2", *JSON)
    assert by_file.rows == by_queues.rows
    weights = {"q.0": 1, "q.1": 1, "q.2": 1, "vip": 2}
    assert {row["queue"] for row in by_file.rows} == set(weights)
    assert {row["queue"]: row["weight"] for row in run("ring", "--file", file, *JSON).rows} == weights


def test_a_message_is_followed_through_all_exchanges(run, write) -> None:
    file = write(EVENTS)
    command = ("route", "order.new", "--file", file, "--exchange", "events", "--header", "tenant=acme")
    (row,) = run(*command, *JSON).rows
    (alone,) = run("route", "acme", "--hash-header", "tenant", "-q", "a", "-q", "b", *JSON).rows
    queues = sorted(["audit", alone["queue"]])
    assert row == {"schema": 1, "type": "file_route", "key": "order.new", "queues": queues}
    assert run("route", "other", "-f", file, "-x", "events").out.split() == ["other", "audit"]
    assert run("route", "acme", "-f", file, "-x", "orders").out.split() == ["acme", alone["queue"]]


def test_of_slots_the_slot_is_named_and_the_queue_left_to_the_broker(run, write) -> None:
    found = run("route", "customer-42", "--file", write(SLOTS % 1), *JSON)
    # erlang:phash2([<<"customer-42">>], 134217728) rem 64 is 24, as Erlang prints it
    (row,) = found.rows
    assert (row["queues"], row["slot"]) == ([{"any_of": ["t.0", "t.1"]}], "tenants.slot.24")
    assert "rabbit-chx export" in found.err
    counted = run("route", "a", "b", "c", "--file", write(SLOTS % 1), "--count", *JSON)
    assert sum(int(row["keys"]) for row in counted.rows) == 3


BEHIND = """
schema: 1
exchanges:
  top:
    type: x-consistent-hash
    hash-property: correlation_id
    bindings: [{exchange: second, key: "3"}]
  second: {type: x-consistent-hash, queues: [a, b]}
  header: {type: x-consistent-hash, hash-header: t, bindings: [{exchange: other, key: "1"}]}
  other: {type: x-consistent-hash, hash-header: u, queues: [a, b]}
  direct: {type: x-consistent-hash, hash-header: t, bindings: [{exchange: plain, key: "1"}]}
  plain: {type: direct, bindings: [{queue: a, key: k}]}
  in: {type: fanout, bindings: [{exchange: second}]}
  keyed: {type: x-consistent-hash, bindings: [{exchange: in, key: "1"}]}
queues: {a: {}, b: {}}
"""


def test_a_part_of_the_message_that_the_key_does_not_give_is_not_guessed(run, write) -> None:
    file = ("-f", write(BEHIND), "--release", "4.3")
    found = run("route", "k", *file, "-x", "top", "--explain", *JSON)
    assert [row["queues"] for row in found.rows] == [[{"any_of": ["a", "b"]}]]
    assert "exchange 'second' may choose any of its queues: it hashes the routing key" in found.err
    (counted,) = run("route", "k", "l", *file, "-x", "top", "--count", *JSON).rows
    assert (counted["end"], counted["keys"]) == ("any of a, b", 2)
    (row,) = run("route", "acme", *file, "-x", "header", *JSON).rows
    assert row["queues"] == [{"any_of": ["a", "b"]}]
    (alone,) = run("route", "x", "--hash-header", "u", "-q", "a", "-q", "b", *JSON).rows
    (row,) = run("route", "acme", *file, "-x", "header", "--header", "u=x", *JSON).rows
    assert row["queues"] == [alone["queue"]]
    refused = run("route", "k", *file, "-x", "direct")
    assert (refused.code, refused.out) == (1, "")
    assert "exchange 'plain' (type direct) routes by the routing key" in refused.err


def test_headers_alone_leave_the_routing_key_open(run, write) -> None:
    slots = "  slotted: {type: x-modulus-hash, slots: 2, queues: [a, b]}\nqueues:"
    file = ("-f", write(BEHIND.replace("queues: {a", f"{slots} {{a")), "--release", "4.3")
    found = run("route", "--header", "a=b", *file, "-x", "in")
    assert "any of a, b" in found.out
    assert "exchange 'second' may choose any of its queues: it hashes the routing key" in found.err
    assert "slot" not in found.err  # the route meets none
    found = run("route", "--header", "a=b", *file, "-x", "keyed", "--explain")
    assert "the part that the exchange hashes is not given" in found.out
    refused = run("route", "--header", "a=b", *file, "-x", "")
    assert refused.code == 1
    assert "the default exchange routes by the routing key of the message, which is not given" in refused.err


# ---- what is refused


PUBLISH = ("publish", "x.csv", "-x", "e", "-U", "amqp://h")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["route", "k"], "missing --queue NAME[=WEIGHT]"),
        (["route", "k", "-q", "q0=1_0"], "queue 'q0': got '1_0', expected an integer from 1 to 10000"),
        (["route", *TWO], "missing KEY"),
        (["route", "k", "-q", "q0", "-q", "q0"], "twice"),
        (["route", "k", *TWO, "--hash-header", "a", "--hash-property", "message_id"], "both"),
        (["route", "k", *TWO, "--hash-property", "app_id"], "message_id, correlation_id or timestamp"),
        (["route", "--header", "a=b", *TWO], "--hash-header"),
        (["route", "--header", "ab", *TWO, "--hash-header", "a"], "NAME=VALUE"),
        (["route", "é" * 128, *TWO], "255 bytes"),
        (["route", "k", *TWO, "--release", "4.x"], "4.3.6 or 4.3"),
        (["route", "k", *TWO, "--release", "9.1"], "parity"),
        (["route", "k", *TWO, "--release", "3.12", "--store", "khepri"], "mnesia"),
        (["route", "k", "--keys", "f", *TWO], "KEY and --keys"),
        (
            ["route", "--keys", "/does/not/exist", *TWO],
            "Error: cannot read /does/not/exist: No such file or directory",
        ),
        (["route", "--keys", "/", *TWO], "Is a directory"),
        (["route", "--keys", "-", *TWO], "empty"),
        (["route", "soon", *TWO, "--hash-property", "timestamp"], "seconds since 1970"),
        (["route", "9" * 5000, *TWO, "--hash-property", "timestamp"], "seconds since 1970"),
        (["route", "٣", *TWO, "--hash-property", "timestamp"], "seconds since 1970"),
        (["doctor", "--connect-timeout", "nan"], "nan is not in the range 0.1<=x<=3600"),
        (["plan", "FILE", "--max-moved", "nan"], "'--max-moved': nan is not in the range"),
        (["scale", "FILE", "--timeout", "nan"], "nan is not in the range"),
        (["rebalance", "FILE", "--sample", "nan"], "nan is not in the range"),
        (["watch", "-x", "e", "-U", "amqp://h", "--interval", "1"], "1 is not in the range x>=5"),
        (
            ["watch", "-x", "jobs", "-f", "FILE", "-U", "amqp://h"],
            "expected a file with the exchange 'jobs' of virtual host '/'. Without --file",
        ),
        (
            ["watch", "-x", "events", "-f", "FILE", "-U", "amqp://h"],
            "expected an exchange of virtual host '/' that hashes: one of orders",
        ),
        *(
            (["group", "g", "--stream", "s", "-U", "amqp://h", "--stream-port", port], "range 1<=x<=65535")
            for port in ("0", "65536")
        ),
        (["route", "k", "--file", "FILE", "-q", "a"], "--file replaces --queue"),
        (["route", "k", "--exchange", "orders"], "--exchange needs --file"),
        (["route", "k", "--file", "FILE", "--exchange", "nope"], "got 'nope'"),
        (["route", "--file", "FILE"], "missing KEY"),
        (["route", "k", "--file", "FILE", "-x", "events", "--explain"], "x-consistent-hash"),
        (["ring", "--infer", "/does/not/exist", *TWO], "No such file"),
        (["ring", *TWO, "--worker-pool-size", "1"], "no effect on RabbitMQ 4.3.6 on Khepri"),
        (["parity"], "--url"),
        (["parity", "--throw-away", "4.3", "--url", "amqp://h"], "no effect on a throw-away broker"),
        (
            ["report", "--file", "FILE", "--live", "--url", "amqp://h", "--release", "3.10", "-o", "p"],
            "--release has no effect on",
        ),
        (["publish", "x.txt", "-x", "e", "-U", "amqp://h"], "--format"),
        (["publish", "/none.csv", "-x", "e", "-U", "amqp://h"], "No such file"),
        ([*PUBLISH, "--property-column", "message_id"], "NAME=COLUMN"),
        (["publish", "-", "--format", "csv", *PUBLISH[2:], "--resume", "p"], "can be read again"),
        (["publish", "FILE", "--format", "csv", *PUBLISH[2:], "--password-file", "/none"], "password file"),
        (["rout"], "No such command 'rout'. Did you mean route?"),
    ],
)
def test_wrong_usage_says_what_is_wrong_and_the_fix(run, write, arguments: list[str], expected: str) -> None:
    file = str(write(EVENTS))
    assert expected in run.refused(*(file if each == "FILE" else each for each in arguments))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (b"fine\nfine\n\xff\xfe\n", ["line 3 of standard input", "--raw"]),
        (b"fine\n" + b"x" * 300 + b"\n", ["line 2 of standard input", "300 bytes"]),
        (b"x" * (3 << 21), ["line 1"]),
    ],
)
def test_a_line_that_is_no_key_is_named(run, keys: bytes, expected: list[str]) -> None:
    text = run.refused("route", "--keys", "-", *TWO, stdin=keys)
    assert all(each in text for each in expected)


@pytest.mark.parametrize("verb", ["route", "simulate"])
def test_a_key_that_is_no_timestamp_is_named_by_its_line_in_any_block(run, monkeypatch, verb: str) -> None:
    monkeypatch.setattr("rabbit_chx.cli.ask.key_file._BLOCK", 32)
    given = b"1700000000\n" * 10 + b"bad\n"
    text = run(verb, "--keys", "-", *TWO, "--hash-property", "timestamp", stdin=given).err
    assert "invalid property timestamp in line 11 of standard input: got 'bad'" in text


@pytest.mark.parametrize(
    "url", ["amqp://u:sesame@h:port", "amqp://u:ses/ame@h", "http://u:sesame@h", "sesame"]
)
def test_a_malformed_url_is_never_echoed(run, url: str) -> None:
    text = run.refused("parity", "--url", url)
    assert "sesame" not in text
    assert "ame@h" not in text
    assert "%2F" in text


@pytest.mark.parametrize(
    "url",
    ["amqp://u:sesame@host", "amqp://u:ses/ame@h", "amqp://u:open sesame@h/v", f"amqp://u:{'sesame' * 25}@h"],
)
@pytest.mark.parametrize(
    "verb",
    [["check"], ["lint"], ["export"], ["route", "k", "-f"], ["watch", "-U", "amqp://h", "-x", "e", "-f"]],
)
def test_a_url_in_place_of_a_file_is_not_echoed(run, verb: list[str], url: str) -> None:
    text = run.refused(*verb, url)
    assert "'amqp://***@h" in text
    assert "ame@" not in text
    assert "sesame" not in text
    assert "-U or --url" in text


def test_a_url_that_is_too_long_for_a_key_is_shown_without_its_password(run) -> None:
    assert "'amqp://***@h/'... (312 bytes)" in run.refused("route", f"amqp://u:{'sesame' * 50}@h/", *TWO)


@pytest.mark.parametrize(
    "url", ["amqp://u:open sesame@h/", "amqp://u:o')p sesame@h/", "amqp://u@x:a sesame@h/"]
)
def test_a_password_with_blanks_is_not_echoed(run, write, url: str) -> None:
    text = run.refused("check", write("schema: 1\n"), url)
    assert "argument (amqp://***@h/)" in text


def test_only_user_and_password_are_hidden() -> None:
    text = "got 'http://h/a', expected amqp://u:p w@h/, or http://h/ as 'a' says"
    assert without_secrets(text) == "got 'http://h/a', expected amqp://***@h/, or http://h/ as 'a' says"


def test_a_broker_that_is_not_there_fails_with_its_address_and_without_the_password(run) -> None:
    failed = run("parity", "--url", "amqp://me:sesame@127.0.0.1:1/v")
    assert failed.code == 1
    assert "127.0.0.1:1, virtual host 'v', user 'me'" in failed.err
    checked = run("doctor", "--url", "amqp://me:sesame@127.0.0.1:1/", *JSON)
    assert checked.code == 1
    (row,) = (check for check in checked.rows if check["state"] == "failed")
    assert row["hint"]
    assert "sesame" not in failed.err + checked.out + checked.err


def test_doctor_names_a_missing_package_of_every_installation(run, monkeypatch) -> None:
    installed = metadata.version

    def version(name: str) -> str:
        if name == "mmh3":
            raise metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(metadata, "version", version)
    checked = run("doctor", *JSON)
    assert checked.code == 1
    (row,) = (check for check in checked.rows if check["state"] == "failed")
    assert (row["name"], row["found"], row["hint"]) == ("mmh3", "not installed", "pip install mmh3")


def test_doctor_sees_the_cluster_of_a_release_that_is_not_mirrored(run) -> None:
    answers = {
        "/api/whoami": {"name": "me", "tags": ["monitoring"]},
        f"/api/nodes?columns={NODES}": [{"name": "rabbit@a", "running": True}],
        "/api/overview": {"product_name": "RabbitMQ", "rabbitmq_version": "9.0.0"},
    }
    with serving(answers) as api:
        checked = run("doctor", "--url", "amqp://me@127.0.0.1:1/", "--management-url", api.url, *JSON)
    states = {check["name"]: (check["state"], check["found"]) for check in checked.rows}
    assert states["management API"] == ("ok", "RabbitMQ 9.0.0, user 'me' with the tags monitoring")
    assert states["cluster"] == ("ok", "1 node, all running, no alarm")
    assert list(states).index("management API") < list(states).index("Python")  # the broker first


# ---- in a process of its own


def test_without_a_verb_only_the_help_is_printed() -> None:
    done = in_a_process()
    assert done.returncode == 64
    assert done.stderr == in_a_process("--help").stdout


def test_routing_one_key_loads_only_what_it_needs() -> None:
    loaded = loaded_after(
        "from rabbit_chx.cli import _exit_code", "assert not _exit_code(['route', 'k', '-q', 'a', '-q', 'b'])"
    )
    assert not {"numpy", "rich", "pika", "pydantic"} & loaded
    assert not [name for name in loaded if "topology" in name]


def unheard(*command: str) -> tuple[int, bytes]:
    """The exit code and the standard error of a process whose output has no reader."""
    out, ours = os.pipe()
    os.close(out)
    done = subprocess.run([sys.executable, *command], stdout=ours, stderr=subprocess.PIPE, check=False)
    os.close(ours)
    return done.returncode, done.stderr


@pytest.mark.parametrize("count", [1, 200_000])
def test_a_verb_that_only_shows_something_ends_well_when_its_reader_has_left(write, count: int) -> None:
    keys = write("".join(f"key-{number}\n" for number in range(count)), "keys")
    assert unheard("-m", "rabbit_chx", "route", "--keys", str(keys), *TWO) == (0, b"")


@pytest.mark.parametrize("output", ["table", "json"])
def test_a_comparison_ends_as_always_when_its_reader_has_left(write, output) -> None:
    old, new = write(ORDERS, "old.yaml"), write(ORDERS.replace("{0..2}", "{0..3}"), "new.yaml")
    against = ("plan", str(new), "--against", str(old), "--output", output)
    assert unheard("-m", "rabbit_chx", *against) == (2, b"")


def test_a_change_goes_on_when_its_reader_has_left() -> None:
    program = (
        "import sys; from rabbit_chx.cli.show.output import tell\n"
        "for number in range(3):\n"
        "    tell('table', 'step', 'done')\n"
        "    print(number, file=sys.stderr)\n"
    )
    code, errors = unheard("-c", program)
    assert (code, errors.split()) == (0, [b"0", b"1", b"2"])
