"""Names that other users plant on a broker reach no terminal as control characters."""

from __future__ import annotations

import json
from collections import Counter
from urllib.parse import urlsplit

import pytest
from pika import spec
from pika.exceptions import ConnectionClosedByBroker

from rabbit_chx.base.text import UNPRINTABLE
from rabbit_chx.broker.management import Management
from rabbit_chx.cli import _exit_code
from tests.broker.erlang import quick_command
from tests.queues import confirming_channel

pytestmark = [pytest.mark.broker, pytest.mark.one_release]

PLANTED = {
    "escapes": ["planted0\x1b[2J\x9b31m\u202e\u2066"],
    "printable": [
        "planted1\"'`",
        "planted2[bold red]<script>alert(1)</script>[/]",
        'planted3">>, halt(), <<"',
        "planted4." + "ä" * 123,
        "planted5{0}%s%(x)s\\n$HOME",
    ],
}
FILE = 'schema: 1\nvhost: "/"\nexchanges: {wanted.hostile: {type: x-consistent-hash, queues: [wanted.q]}}\nqueues: {wanted.q: {}}\n'


@pytest.fixture(params=PLANTED)
def planted(request, broker):
    names = PLANTED[request.param]
    with confirming_channel(broker) as channel:
        for name in names:
            channel.queue_declare(name)
            channel.exchange_declare(name, "x-consistent-hash")
            channel.queue_bind(name, name, "1")
        yield names
        for name in names:
            channel.queue_delete(name)
            channel.exchange_delete(name)


def commands(folder, names):
    """Command lines that show all exchanges, and three about each of these."""
    file, exported, rows = folder / "wanted.yaml", folder / "live.yaml", folder / "rows.csv"
    file.write_text(FILE)
    rows.write_text("a\n1\n")
    definitions = folder / "definitions.json"
    yield "check", file, "--strict"
    yield ("list",)
    yield "list", "--output", "json"
    yield "check", file, "--strict", "--output", "json"
    yield "plan", file, "--prune", "--verbose"
    yield "plan", file, "--prune", "--output", "json"
    yield "apply", file, "--prune", "--dry-run", "--verbose"
    yield "export", "--out", exported
    yield ("export",)
    yield "export", definitions, "--vhost", "/", "--out", folder / "imported.yaml"
    yield "export", definitions, "--vhost", "/"
    yield "lint", exported
    yield ("doctor",)
    yield "parity", "--messages", "10"
    for name in names:
        page = folder / f"{name[:8]}.html"
        yield "ring", exported, "--exchange", name
        yield "report", "--file", exported, "--exchange", name, "--live", "--out", page
        yield "publish", rows, "--exchange", name, "--key-column", "a"


@pytest.mark.long
def test_planted_names_are_shown_with_escapes(broker, planted, monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setenv("AMQP_URL", f"amqp://{urlsplit(broker.url).netloc}/%2F")
    monkeypatch.setenv("RABBITMQ_MANAGEMENT_URL", broker.management_url)
    monkeypatch.setenv("RABBIT_CHX_NODE", quick_command(broker))
    definitions = Management.of(broker.url, broker.management_url).definitions()
    (tmp_path / "definitions.json").write_text(json.dumps(definitions))
    shown = Counter()
    for line in commands(tmp_path, planted):
        assert _exit_code(list(map(str, line))) in {0, 1, 2, 64}, line  # 64: the option refuses the name
        said = "".join(capsys.readouterr())
        shown.update(name for name in planted if name[:8] in said)
        assert not UNPRINTABLE.search(said.replace("\n", "").replace("\t", "")), line
    assert all(shown[name] >= 8 for name in planted), shown
    made = ["live.yaml", "imported.yaml", *(f"{name[:8]}.html" for name in planted)]
    written = [tmp_path / name for name in made if (tmp_path / name).exists()]
    assert [file.name for file in written] == (made[:1] if UNPRINTABLE.search(planted[0]) else made)
    for file in written:
        text = file.read_text()
        assert not UNPRINTABLE.search(text.replace("\n", "")), file
        assert file.suffix != ".html" or "<script>alert" not in text


def test_the_broker_refuses_a_name_that_is_not_utf8(broker) -> None:
    with broker.connection() as connection:
        channel = connection.channel()
        channel._impl._send_method(spec.Queue.Declare(queue=b"planted\xff"))
        with pytest.raises(ConnectionClosedByBroker, match="Malformed UTF-8"):
            connection.process_data_events(30)


def test_only_older_brokers_accept_a_name_with_a_surrogate(broker) -> None:
    """Such a name is not UTF-8 either. As long as one exists, the management API of 4.0 answers 500 to lists of queues."""
    name = b"planted\xed\xa0\x80"
    with broker.connection() as connection:
        channel = connection.channel()
        channel._impl._send_method(spec.Queue.Declare(queue=name, nowait=True))
        channel._impl._send_method(spec.Queue.Delete(queue=name, nowait=True))
        if broker.version.startswith(("3.", "4.0.")):
            assert channel.queue_declare("", exclusive=True).method.queue
        else:
            with pytest.raises(ConnectionClosedByBroker, match="Malformed UTF-8"):
                connection.process_data_events(30)
