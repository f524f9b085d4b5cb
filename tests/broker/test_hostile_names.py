"""Names that other users plant on a broker reach no terminal as control characters."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

import pytest
from pika import spec
from pika.exceptions import ConnectionClosedByBroker

from rabbit_chx.broker.management import Management
from rabbit_chx.cli import _exit_code
from rabbit_chx.text import UNPRINTABLE
from tests.broker.erlang import container_of

pytestmark = [pytest.mark.broker, pytest.mark.one_release]

PLANTED = {
    "escapes": "planted\x1b[2J\x9b31m\u202e\u2066",
    "quotes": "planted\"'`",
    "markup": "planted[bold red]<script>alert(1)</script>[/]",
    "Erlang": 'planted">>, halt(), <<"',
    "long": "planted" + "ä" * 124,
    "format": "planted{0}%s%(x)s\\n$HOME",
}
FILE = 'schema: 1\nvhost: "/"\nexchanges: {wanted.hostile: {type: x-consistent-hash, queues: [wanted.q]}}\nqueues: {wanted.q: {}}\n'


@pytest.fixture(params=PLANTED)
def planted(request, broker):
    name = PLANTED[request.param]
    with broker.connection() as connection:
        channel = connection.channel()
        channel.queue_declare(name)
        channel.exchange_declare(name, "x-consistent-hash")
        channel.queue_bind(name, name, "1")
        yield name
        channel.queue_delete(name)
        channel.exchange_delete(name)


@pytest.mark.long
def test_planted_names_are_shown_with_escapes(broker, planted, monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setenv("AMQP_URL", f"amqp://{urlsplit(broker.url).netloc}/%2F")
    monkeypatch.setenv("RABBITMQ_MANAGEMENT_URL", broker.management_url)
    monkeypatch.setenv("RABBIT_CHX_NODE", f"docker exec -u rabbitmq {container_of(broker)} rabbitmqctl eval")
    file, exported = tmp_path / "wanted.yaml", tmp_path / "live.yaml"
    file.write_text(FILE)
    rows, page = tmp_path / "rows.csv", tmp_path / "page.html"
    rows.write_text("a\n1\n")
    definitions, imported = tmp_path / "definitions.json", tmp_path / "imported.yaml"
    definitions.write_text(json.dumps(Management.of(broker.url, broker.management_url).definitions()))
    shown = 0
    for line in (
        ("check", file, "--strict"),
        ("check", file, "--strict", "--output", "json"),
        ("plan", file, "--prune", "--verbose"),
        ("plan", file, "--prune", "--output", "json"),
        ("apply", file, "--prune", "--dry-run", "--verbose"),
        ("export", "--out", exported),
        ("export",),
        ("import", definitions, "--vhost", "/", "--out", imported),
        ("import", definitions, "--vhost", "/"),
        ("lint", exported),
        ("ring", exported, "--exchange", planted),
        ("report", "--file", exported, "--exchange", planted, "--live", "--out", page),
        ("doctor",),
        ("parity", "--keys", "10"),
        ("publish", rows, "--exchange", planted, "--key-column", "a"),
    ):
        assert _exit_code(list(map(str, line))) in {0, 1, 2, 64}, line  # 64: the option refuses the name
        said = "".join(capsys.readouterr())
        shown += "planted" in said
        assert not UNPRINTABLE.search(said.replace("\n", "").replace("\t", "")), line
    assert shown >= 8
    written = [file for file in (exported, imported, page) if file.exists()]
    assert written == [exported] if UNPRINTABLE.search(planted) else [exported, imported, page]
    for file in written:
        text = file.read_text()
        assert not UNPRINTABLE.search(text.replace("\n", "")), file
    assert "<script>alert" not in text


@pytest.mark.parametrize("name", [b"planted\xed\xa0\x80", b"planted\xff"], ids=["surrogate", "no UTF-8"])
def test_the_broker_accepts_no_name_that_is_not_utf8(broker, name) -> None:
    with broker.connection() as connection:
        channel = connection.channel()
        channel._impl._send_method(spec.Queue.Declare(queue=name))
        with pytest.raises(ConnectionClosedByBroker, match="Malformed UTF-8"):
            connection.process_data_events(30)
