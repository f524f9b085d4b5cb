"""Names that other users plant on a broker reach no terminal as control characters."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from rabbit_chx.cli import _exit_code
from rabbit_chx.text import UNPRINTABLE

pytestmark = [pytest.mark.broker, pytest.mark.one_release]

PLANTED = "planted\x1b[2J\x9b31m\u202e\u2066"
FILE = 'schema: 1\nvhost: "/"\nexchanges: {wanted.hostile: {type: fanout}}\n'


@pytest.fixture
def planted(broker):
    with broker.connection() as connection:
        channel = connection.channel()
        channel.queue_declare(PLANTED)
        channel.exchange_declare(PLANTED, "x-consistent-hash")
        channel.queue_bind(PLANTED, PLANTED, "1")
        yield
        channel.queue_delete(PLANTED)
        channel.exchange_delete(PLANTED)


def test_planted_names_are_shown_with_escapes(broker, planted, monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setenv("AMQP_URL", f"amqp://{urlsplit(broker.url).netloc}/%2F")
    monkeypatch.setenv("RABBITMQ_MANAGEMENT_URL", broker.management_url)
    file, exported = tmp_path / "wanted.yaml", tmp_path / "live.yaml"
    file.write_text(FILE)
    shown = 0
    for line in (
        ("check", file, "--strict"),
        ("check", file, "--strict", "--output", "json"),
        ("plan", file, "--prune", "--verbose"),
        ("plan", file, "--prune", "--output", "json"),
        ("export", "--out", exported),
        ("export",),
    ):
        _exit_code(list(map(str, line)))
        said = "".join(capsys.readouterr())
        shown += "planted" in said
        assert not UNPRINTABLE.search(said.replace("\n", "").replace("\t", "")), line
    assert shown >= 5
    assert not UNPRINTABLE.search(exported.read_text().replace("\n", ""))
