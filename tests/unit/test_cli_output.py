"""No output of a verb controls the terminal, whatever names, keys and errors contain."""

from __future__ import annotations

import json
import logging
from contextlib import nullcontext

import click
import pytest

from rabbit_chx.base.text import UNPRINTABLE, printable
from rabbit_chx.cli.show import output
from rabbit_chx.consuming.replay import Origin, Outcome, Replayed
from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.topology.model import Observed, Queue, Topology
from rabbit_chx.working.messages import Delivery

ESCAPES = "\x1b]0;PWNED\x07\x1b[2J\x9b31m\u202eabc\u2066\x7f"
"""A window title, a cleared screen, a C1 escape, and text from right to left."""
FILE = {
    "schema": 1,
    "exchanges": {"x": {"type": "x-consistent-hash", "queues": ["a\u202eb", "c"]}},
    "queues": {"a\u202eb": {}, "c": {}},
}


def is_safe(text: str) -> bool:
    return not UNPRINTABLE.search(text.replace("\n", "").replace("\t", ""))


@pytest.fixture
def hostile_file(write):
    return write(json.dumps(FILE), "topology.json")


@pytest.mark.parametrize("output", ["table", "json"])
@pytest.mark.parametrize(
    "line",
    [
        ("route", ESCAPES, "-q", ESCAPES, "-q", "b"),
        ("route", ESCAPES, "-q", f"b{ESCAPES}", "--explain"),
        ("route", "--keys", "KEYS", "-q", "a", "-q", "b\u202e"),
        ("route", "--keys", "KEYS", "-q", "a", "-q", "b\u202e", "--count"),
        ("route", ESCAPES, "--file", "FILE", "--exchange", "x"),
        ("ring", "-q", "a\u202e", "-q", "b\x9b"),
        ("ring", "--file", "FILE", "--exchange", ESCAPES),
        ("simulate", "--keys", "KEYS", "-q", "a\u202e", "-q", "b"),
        ("lint", "FILE"),
        ("plan", "FILE", "--release", "4.3", "--exchange", "x", "--add", "1"),
        ("publish", f"no-such-file{ESCAPES}", "--exchange", ESCAPES, "--url", "amqp://127.0.0.1:1"),
        ("check", f"no-such-file{ESCAPES}", "--url", f"amqp://127.0.0.1:1/{ESCAPES}"),
        (ESCAPES,),
    ],
    ids=lambda line: line[0] if line[0] != ESCAPES else "unknown verb",
)
def test_names_and_keys_do_not_control_the_terminal(run, line, output, hostile_file, write) -> None:
    places = {"FILE": hostile_file, "KEYS": write(f"{ESCAPES}\nplain\n{ESCAPES}\n", "keys")}
    options = () if line == (ESCAPES,) else ("--output", output)
    done = run(*(places.get(word, word) for word in line), *options)
    assert is_safe(done.out)
    assert is_safe(done.err)
    assert done.out or done.err or line[0] == "lint"
    assert done.code != 70


def test_names_on_a_live_broker_do_not_control_the_terminal(run, hostile_file, live) -> None:
    live(Observed(Topology(queues=(Queue("planted\x1b[2J\u202e"), Queue("\x9b")))))
    for verb in ("check", "plan"):
        done = run(
            verb, hostile_file, "--url", "amqp://127.0.0.1:1", "--strict" if verb == "check" else "--prune"
        )
        assert is_safe(done.out + done.err)
        assert r"planted\x1b[2J\u202e" in done.out + done.err


def test_errors_and_warnings_of_a_broker_do_not_control_the_terminal(capfd, monkeypatch) -> None:
    output.notice("Error", f"the broker said {ESCAPES}")
    output.echo(str(BrokerUnavailable(ESCAPES)), err=True)
    logger = logging.getLogger("rabbit_chx")
    monkeypatch.setattr(logger, "handlers", [])
    with click.Context(click.Command("watch")):
        output.log_to_stderr()
        logger.warning("returned: %s", ESCAPES)
    assert not logger.handlers
    printed = capfd.readouterr().err
    assert printed.count("PWNED") == 3
    assert is_safe(printed)


def test_unprintable_characters_are_shown_as_escapes() -> None:
    assert printable(ESCAPES) == r"\x1b]0;PWNED\x07\x1b[2J\x9b31m\u202eabc\u2066\x7f"
    assert printable("é🐇\n", keep="\n") == "é🐇\n"
    line = output.json_line("route", key=ESCAPES)
    assert is_safe(line)
    assert json.loads(line)["key"] == ESCAPES


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [(KeyboardInterrupt(), 130, "Interrupted."), (BrokerUnavailable("lost"), 1, "lost")],
)
def test_a_replay_that_does_not_come_to_its_end_says_how_much_is_done(
    run, monkeypatch, error, code, said
) -> None:
    def replayed(*_, **__):
        for key in "ab":
            yield Replayed(
                Delivery(b"", key, queue="parked"), Origin("x", key, "a", "", ""), Outcome.REPLAYED
            )
        raise error

    monkeypatch.setattr("rabbit_chx.cli.replay.connect", lambda *_, **__: nullcontext())
    monkeypatch.setattr("rabbit_chx.cli.replay.replayed_messages", replayed)
    done = run("replay", "parked", "--url", "amqp://127.0.0.1:1", "--yes")
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("parked: 2 replayed, 0 with other keys, 0 of unknown origin, 0 refused\n")
    assert said in done.err
