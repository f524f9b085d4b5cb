"""Hostile input is accepted or refused with a message: no traceback, no endless loop, no leaked secret.

`make proof` tries many times as many examples as CI; RABBIT_CHX_SEED repeats a run. Inputs that once failed are tried every time.
"""

from __future__ import annotations

import io
import json
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import strategies as st
from pika import data as wire

from rabbit_chx import ConsistentHashExchange
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker import Management
from rabbit_chx.broker.amqp import parameters_of
from rabbit_chx.broker.credentials import login
from rabbit_chx.cli.ask.key_file import read_keys
from rabbit_chx.cli.ask.row_files import Picker, read_batches
from rabbit_chx.cli.ring import read_pairs
from rabbit_chx.errors import BrokerUnavailable, RabbitChxError
from rabbit_chx.mirror.fields import CLIENTS, encode
from rabbit_chx.mirror.kernel import phash2
from rabbit_chx.publishing import Publisher
from rabbit_chx.topology.checks.drift import drift
from rabbit_chx.topology.checks.lint import lint
from rabbit_chx.topology.file.definitions import to_definitions
from rabbit_chx.topology.file.dump import dumps
from rabbit_chx.topology.file.load import load, loads
from rabbit_chx.topology.model import Observed, Topology
from rabbit_chx.topology.planning.plan import plan
from rabbit_chx.topology.planning.what_if import assume_applied
from tests.proof import LONG
from tests.property import hostile_commands as commands, hostile_input as hostile
from tests.property.hostile import fuzz, judge
from tests.property.strategies import ANYTHING

# A failing example may be large; its error is what matters.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Generating overly large repr"),
    pytest.mark.timeout(3_600 if LONG else 600),
]

SECRETS = (hostile.FIRST, hostile.SECOND)


@pytest.fixture(autouse=True)
def no_network(no_way_out):
    """Nothing here connects."""


def used(topology: Topology) -> Topology:
    """Everything that is done with a topology without a broker."""
    lint(topology)
    empty = Observed(Topology(vhost=topology.vhost))
    for observed in (empty, assume_applied(topology, "4.3")):
        plan(topology, observed)
        drift(topology, observed)
    for format_ in ("yaml", "json"):
        assert loads(dumps(topology, format_), format=format_)
    loads(json.dumps({"rabbit_version": "4.3.6", **to_definitions(topology)}), format="json")
    return topology


@pytest.mark.long
@pytest.mark.parametrize("format_", ["yaml", "json"])
def test_the_text_of_a_topology_file(format_):
    fuzz(
        f"topology files, {format_.upper()}",
        hostile.texts(format_),
        lambda text: used(loads(text, format=format_)),
        examples=300,
        # Long numbers once took quadratic time.
        kept=["9" * 30_000 + "x", "schema: " + "9" * 30_000 + "x"],
    )


@pytest.mark.long
def test_the_bytes_of_a_topology_file(tmp_path):
    def tried(file):
        name, data = file
        (tmp_path / name).write_bytes(data)
        return load(tmp_path / name)

    fuzz("topology files, bytes", hostile.files(), tried, examples=200)


@pytest.mark.long
def test_definitions():
    fuzz(
        "definitions.json",
        hostile.of_wrong_values(hostile.DEFINITIONS),
        lambda value: used(loads(json.dumps(value), format="json")),
        examples=300,
    )


def every_use_of(url: str) -> object:
    """All that an AMQP URL is asked for, without connecting."""
    parsed = BrokerUrl.parse(url)
    said = [str(parsed), repr(parsed), repr(parsed._at_vhost(parsed.vhost)), repr(parameters_of(url))]
    return [*said, repr(Management.of(url)), repr(Publisher(url)), repr(Publisher([url, url]))]


def test_amqp_urls():
    fuzz("AMQP URLs", hostile.urls(["amqp", "amqps"]), every_use_of, examples=500, secrets=SECRETS)


def test_management_urls():
    def asked(url):
        management = Management(url, timeout=0.1)
        return [repr(management), management.overview()]

    kept = [f"http://\uff0f:{hostile.FIRST}@127.0.0.1/"]  # Python's parser quotes it
    fuzz("management URLs", hostile.urls(["http", "https"]), asked, examples=400, secrets=SECRETS, kept=kept)


def test_password_files(tmp_path):
    file = tmp_path / "password"

    def read(data):
        file.write_bytes(data)
        login(file, BrokerUrl("127.0.0.1", user="user"))

    secret = st.just(hostile.FIRST.encode())
    around = st.sampled_from([b"", b"\n", b"\r\n", b"\0", b"\xff", b"\xef\xbb\xbf", b"\n\n", b"\xff\xfe"])
    files = st.tuples(around, secret, around, secret | st.just(b""), around).map(b"".join)
    fuzz("password files", files, read, examples=100, secrets=SECRETS)


def test_header_values():
    releases = ("3.10", "4.3")
    exchanges = [ConsistentHashExchange({"a": 1, "b": 2}, hash_header="h", release=each) for each in releases]

    def of_a_client(value, client):
        for exchange in exchanges:
            exchange.route(headers={"h": value}, client=client)
        field = encode(value, client)
        phash2(field._term)
        if client == "pika":  # what the mirror takes, pika writes, and reads
            pieces: list[bytes] = []
            wire.encode_table(pieces, {"h": value})
            wire.decode_table(b"".join(pieces), 0)
        return field

    def tried(value):
        found = [judge(partial(of_a_client, value, client)) for client in CLIENTS]
        return next((one for one in found if isinstance(one, RabbitChxError)), found)

    fuzz("header values, every client", ANYTHING, tried, examples=200)


@pytest.mark.long
def test_messages_for_a_publisher():
    # They are never opened, so valid messages raise BrokerUnavailable.
    publishers = [
        Publisher("amqp://127.0.0.1:1"),
        Publisher("amqp://127.0.0.1:1", properties={"headers": {"a": "b"}}),
    ]

    def tried(message):
        many, bodies, keys, headers, properties = message
        for publisher in publishers:
            with suppress(BrokerUnavailable):
                call = publisher.publish_many if many else publisher.publish
                call(bodies, keys, **({"headers": headers} | properties))

    kept = [(True, None, "", {}, {}), (True, ["a", "\ud800"], "", {}, {}), (False, "a", "a", True, {})]
    kept += [(False, "a", "a", {"": {0: None}}, {})]
    fuzz("messages for a publisher", hostile.messages(), tried, examples=300, kept=kept)


@pytest.mark.parametrize("raw", [False, True])
def test_files_of_keys(raw):
    exchange = ConsistentHashExchange({"a": 1, "b": 2})

    def tried(data):
        return [exchange.bucket_many(column) for column in read_keys(io.BytesIO(data), name="keys", raw=raw)]

    fuzz(f"files of keys{', raw' * raw}", hostile.KEY_FILES, tried, examples=200)


PICKERS = [Picker(), Picker("b", "k"), Picker("b", "k", {"h": "h"}, {"message_id": "k"})]


@pytest.mark.parametrize(
    ("kind", "rows", "kept"),
    [
        ("csv", hostile.CSV_FILES, [b"\n\n"]),
        ("jsonl", hostile.JSON_LINES, [b'{"k": "", "b": "\\ud800"}', b"[" * 100_000]),
        ("parquet", hostile.GARBAGE, [b"\0\0\0\0PAR1"]),
        ("arrow", hostile.GARBAGE, [b"\0\0\0\x80"]),
    ],
)
def test_rows_to_publish(kind, rows, kept):
    publisher = Publisher("amqp://127.0.0.1:1")

    def tried(file):
        data, picker = file
        for batch in picker.batches(read_batches(io.BufferedReader(io.BytesIO(data)), kind, "rows"), "rows"):
            publisher.publish_many(batch.bodies, batch.keys, headers=batch.headers, **batch.properties)

    kept = [(data, picker) for data in kept for picker in PICKERS[:2]]
    files = st.tuples(rows, st.sampled_from(PICKERS))
    fuzz(f"rows to publish, {kind}", files, tried, examples=200, kept=kept)


def test_files_of_pairs(tmp_path):
    file = tmp_path / "pairs.csv"

    def tried(data):
        file.write_bytes(data)
        return read_pairs(str(file), None, option="--pairs")

    fuzz("files of pairs", hostile.CSV_FILES, tried, examples=200)


@pytest.mark.long
def test_command_lines(tmp_path, monkeypatch):
    """All verbs in one process; whatever would start or ask something beyond it is as if there were nothing."""
    for name, data in commands.FILES.items():
        (tmp_path / name).write_bytes(data)
    monkeypatch.chdir(tmp_path)
    for variable in ("AMQP_URL", "RABBITMQ_URL", "RABBITMQ_MANAGEMENT_URL", "RABBIT_CHX_NODE"):
        monkeypatch.delenv(variable, raising=False)

    def nothing(*_, **__):
        raise BrokerUnavailable("there is none here")

    monkeypatch.setattr("rabbit_chx.testing.available", nothing)
    monkeypatch.setattr("rabbit_chx.testing.Broker.start", nothing)
    monkeypatch.setattr("subprocess.Popen", nothing)
    monkeypatch.setattr(Publisher, "open", lambda _: None)
    kept = [(["doctor", "-U", "", f"amqp://user:{hostile.FIRST}@127.0.0.1/"], b"")]
    kept += [(["export", "-U", f"amqp://user:{hostile.FIRST}@[]/", "-V", ""], b"")]
    kept += [
        (["route", "\udcff", "-q", "q", *more], b"") for more in ([], ["--output", "json"], ["--explain"])
    ]
    fuzz("command lines", commands.lines(), commands.run, examples=400, secrets=SECRETS, kept=kept)
