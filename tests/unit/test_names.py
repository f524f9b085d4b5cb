"""Names that no command sends to a broker."""

from __future__ import annotations

import pytest

from rabbit_chx import InvalidValue
from rabbit_chx.base.names import check_name
from rabbit_chx.topology.checks.lint import lint
from rabbit_chx.topology.file.load import loads
from rabbit_chx.topology.model import Observed, Queue, Topology
from rabbit_chx.topology.planning.plan import plan

INVALID = [
    5,
    b"a",
    None,
    "",
    "a\nb",
    "a\r",
    "\t",
    "\0",
    "\x1b[2J",
    "\x7f",
    "\x85",
    "\ud800",
    "x" * 256,
    "é" * 128,
]


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_name_is_refused_in_words_that_hold_no_control_character(name):
    with pytest.raises(InvalidValue, match=r"^invalid queue: .*1 to 255 bytes") as caught:
        check_name("queue", name)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", [5, None, b"x", ["x"]])
def test_a_name_that_is_not_text_is_refused(name):
    with pytest.raises(InvalidValue, match=r"^invalid queue: got .*, expected text of 1 to 255 bytes"):
        check_name("queue", name)


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, " ", "a b", "\u202e", "\U0010ffff"])
def test_other_names_are_returned_as_they_are(name):
    assert check_name("queue", name) is name


def test_a_queue_with_an_invalid_name_is_neither_linted_planned_nor_imported():
    wanted = Topology(queues=(Queue("nl\nx"),))
    assert [finding.code for finding in lint(wanted)] == ["invalid-name"]
    assert "control character '\\n'" in plan(wanted, Observed()).refusals[0]
    with pytest.raises(InvalidValue, match="control character"):
        loads('{"rabbit_version": "4.3.6", "queues": [{"name": "nl\\nx"}]}', format="json")


@pytest.mark.parametrize(
    "command",
    [
        ["route", "key", "-q", "a\nb"],
        ["route", "key", "-q", "a\x1b[2J=2"],
        ["plan", "topology.yaml", "--add", "a\rb"],
        ["plan", "topology.yaml", "--remove", "a\x85"],
        ["lint", "topology.yaml", "--vhost", "a\nb"],
        ["publish", "rows.csv", "-U", "amqp://host", "-x", "a\nb"],
        ["report", "-f", "topology.yaml", "-x", "a\nb", "--out", "page.html"],
    ],
)
def test_no_option_takes_a_name_with_a_control_character(run, command):
    found = run(*command)
    assert (found.code, found.out) == (64, "")
    assert "without control characters" in found.err
