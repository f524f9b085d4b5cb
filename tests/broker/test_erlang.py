"""The program that is kept beside a broker answers as `rabbitmqctl` does, whatever the text."""

from __future__ import annotations

import threading

import pytest

from rabbit_chx.errors import RabbitChxError
from rabbit_chx.testing import Broker
from tests.broker.erlang import Asking
from tests.patience import PATIENCE, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.one_release]

COMMANDS = [
    ["list_vhosts", "name", "--formatter", "json"],
    ["list_vhosts", "name", "--no-table-headers"],
    ["eval", '"-----BEGIN-----\n a\tb\n\n-----END-----\n".'],
    ["eval", 'io:format("one~n~ntwo"), <<"käse €"/utf8>>.'],
    ["eval", "[\n  {a, 'B c'},\n  % a comment\n  \"d\"\n]."],
    ["eval", "error(boom)."],
    ["eval", "1 +"],
    ["set_permissions", "no such user", "", "", ""],
    ["no_such_command"],
]


def said(ask, command):
    try:
        return ask(*command)
    except RabbitChxError as error:
        return str(error)


@pytest.fixture
def asking(broker):
    if broker.source.kind != "docker":
        pytest.skip("the program is kept in containers only")
    assert isinstance(broker.ctl, Asking)
    return broker.ctl


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command)[:20].strip())
def test_a_command_prints_what_rabbitmqctl_prints(broker, asking, command):
    assert said(asking, command) == said(lambda *words: Broker.ctl(broker, *words), command)
    assert asking("eval", "2 + 3.") == "5"


def test_a_command_that_waits_keeps_no_other_waiting(broker, asking):
    wait = "register(gate, self()), receive done -> done end."
    found = []
    waiting = threading.Thread(target=lambda: found.append(asking("eval", wait)))
    waiting.start()
    wait_until(lambda: asking("eval", "whereis(gate).") != "undefined", "the command that waits")
    assert not found
    asking("eval", "gate ! done.")
    waiting.join(PATIENCE)
    assert found == ["done"]
