"""What verbs print: nothing that controls the terminal, and tables that fit terminals of any width, pipes and no colours."""

from __future__ import annotations

import json
import logging
import re
import sys
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


COMMAND = "`rabbit-chx scale FILE --status`"
URL = "https://www.rabbitmq.com/docs/consistent-hash-exchange-and-more"
LONG = f"the change is unfinished: {COMMAND} shows it, see {URL} for more-than-one-reason why\n"


@pytest.mark.parametrize("columns", [34, 40, 70])
def test_a_long_line_on_stderr_wraps_between_words_at_a_terminal(capsys, monkeypatch, columns) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    for label in ("Error", "Not verified"):
        output.notice(label, LONG.rstrip())
        lines = capsys.readouterr().err.splitlines()
        assert " ".join(lines) == f"{label}: {LONG.rstrip()}"
        assert [line for line in lines if len(line) > columns and line != URL] == []
        assert all(any(part in line for line in lines) for part in (COMMAND, URL, "more-than-one-reason"))
    output.echo(LONG.rstrip(), err=True)
    assert " ".join(capsys.readouterr().err.splitlines()) == LONG.rstrip()


@pytest.mark.parametrize("text", [f"  {LONG}", f"{LONG}{LONG}"], ids=["indented", "several"])
def test_indented_and_several_lines_stay_as_they_are_at_a_terminal(capsys, monkeypatch, text) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    output.echo(text.rstrip(), err=True)
    assert capsys.readouterr().err == text


def test_a_long_line_stays_whole_on_stdout_and_in_a_pipe(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    output.echo(LONG.rstrip(), err=True)
    assert capsys.readouterr().err == LONG
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    output.echo(LONG.rstrip())
    output.notice("Note", LONG.rstrip(), err=False)
    assert capsys.readouterr().out == f"{LONG}Note: {LONG}"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [(KeyboardInterrupt(), 130, "Interrupted."), (BrokerUnavailable("lost"), 3, "Error: lost")],
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


# ---- tables

NAME = "a-rather-long-name-of-a-queue-that-somebody-gave-it"
RING = ("ring", "-q", "q0", "-q", f"{NAME}=3", "--release", "4.0")
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def terminal(run, monkeypatch):
    """What a verb shows at a terminal of so many columns: with its codes, and without."""

    def shown(columns: int, *arguments: str) -> tuple[str, str]:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setenv("COLUMNS", str(columns))
        text = run(*arguments).out
        return text, ANSI.sub("", text)

    return shown


@pytest.mark.parametrize("columns", [24, 30, 40, 50, 80, 160])
def test_names_give_way_and_numbers_do_not(terminal, columns) -> None:
    _, shown = terminal(columns, *RING)
    rows = [line for line in shown.splitlines() if line.startswith(" ")]
    assert max(map(len, rows)) <= columns
    first = [line[1:].partition("  ")[0].strip() for line in rows]
    assert {"q0"} < set(first)
    assert NAME in "".join(first)
    if columns >= 50:
        assert max(map(len, shown.splitlines())) <= columns
        shares = [float(share) for share in re.findall(r" (\d+\.\d{3})%", shown)]
        assert (len(shares), sum(shares)) == (2, pytest.approx(100, abs=0.001))


def test_narrow_tables_have_no_bars(terminal) -> None:
    assert "█" not in terminal(50, *RING)[1]
    assert "█" in terminal(80, *RING)[1]


def test_colours_are_for_those_who_want_them(terminal, run, monkeypatch) -> None:
    coloured, plain = terminal(80, *RING)
    assert "\x1b[36;" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    without = run(*RING).out
    assert not re.search(r"\x1b\[(3|4|9|10)\d", without)
    assert ANSI.sub("", without) == plain


def test_in_a_pipe_there_are_no_codes_no_fill_and_whole_sentences(run) -> None:
    shown = run(*RING).out
    assert "\x1b" not in shown
    assert [line for line in shown.splitlines() if line != line.rstrip()] == []
    assert "in rabbitmq.conf would make it sorted (--worker-pool-size 1).\n" in shown


def test_a_name_in_brackets_is_no_markup(run) -> None:
    shown = run("ring", "-q", "[bold]", "-q", "[/]", "-q", ":smile:").out
    assert {"[bold]", "[/]", ":smile:"} < set(shown.split())
