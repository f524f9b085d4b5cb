"""The command that asks a node: what it is given, and how it complains. The commands here are scripts of our own."""

from __future__ import annotations

import pytest

from rabbit_chx import ToExchange
from rabbit_chx.broker.reading.erlang_rings import parse_rings, rings_expression
from rabbit_chx.broker.reading.node import NodeCommand, read_rings, read_worker_pool_size
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, RingUnknown
from tests.unit.erlang import encoded

EXPRESSION = 'io:format("~p ~s", [<<1>>, $\'; rm]), node().'


@pytest.fixture
def script(tmp_path):
    """Makes programs; none is on the PATH."""

    def make(name: str, text: str) -> str:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    return make


def test_the_expression_is_the_last_argument_unchanged(script) -> None:
    shown = script("ctl", 'for word in "$@"; do echo "[$word]"; done')
    command = NodeCommand(f"{shown} -n 'my node' eval")
    for expression in (EXPRESSION, EXPRESSION.removesuffix("."), EXPRESSION + " \n"):
        assert command.eval(expression) == f"[-n]\n[my node]\n[eval]\n[{EXPRESSION}]"
    assert NodeCommand([shown, "eval"]).eval("1") == "[eval]\n[1.]"


def test_a_shell_behind_ssh_leaves_it_alone_too(script) -> None:
    ssh = script("ssh", 'shift; exec sh -c "$*"')  # as sshd does: all words in one line
    ctl = script("ctl", 'echo "$2"')
    assert NodeCommand(f"{ssh} host {ctl} eval").eval(EXPRESSION) == EXPRESSION


def test_line_ends_of_a_terminal_are_taken_off(script) -> None:
    assert NodeCommand([script("c", r"printf '1\r\n2\r\n'"), "eval"]).eval("x") == "1\n2"


def test_errors_do_not_contain_the_command(script) -> None:
    failing = script("fail", "echo 'no such node' >&2; echo 'Arguments given:' secret >&2; exit 69")
    slow = script("slow", "exec sleep 30")
    with pytest.raises(BrokerUnavailable, match=r"exit code 69: no such node$") as failed:
        NodeCommand(f"{failing} --password secret eval").eval("1")
    with pytest.raises(BrokerUnavailable, match=r"within 0\.1 seconds"):
        NodeCommand(f"{slow} secret", timeout=0.1).eval("1")
    with pytest.raises(BrokerUnavailable, match="cannot be run: No such file"):
        NodeCommand("/nowhere/ctl secret eval").eval("1")
    with pytest.raises(BrokerUnavailable, match="cannot be run"):
        NodeCommand([failing, "secret\0"]).eval("1")
    assert "secret" not in str(failed.value)
    assert "secret" not in repr(NodeCommand(f"{failing} secret"))
    silent = script("silent", "exit 1")
    with pytest.raises(BrokerUnavailable, match=r"failed with exit code 1 and said nothing$"):
        NodeCommand([silent, "eval"]).eval("1")
    url = script("url", f"echo no route to ssh://u:{'secret' * 100}@h >&2; exit 1")
    with pytest.raises(BrokerUnavailable, match=r"no route to ssh://\*\*\*@h$"):
        NodeCommand([url, "eval"]).eval("1")


def test_eval_may_be_left_out_after_rabbitmqctl(script) -> None:
    shown = script("rabbitmqctl", 'echo "$@"')
    assert NodeCommand(f"{shown} -q").eval("1") == "-q 1."
    assert NodeCommand(str(shown)).eval("1") == "eval 1."


def test_a_command_that_runs_no_rabbitmqctl_is_shown_one_that_does(script) -> None:
    docker = script("docker", 'printf \'exec: "%s": no such file\' "$3" >&2; exit 127')
    with pytest.raises(BrokerUnavailable) as failed:
        NodeCommand(f"{docker} exec rabbit").eval(EXPRESSION)
    assert str(failed.value).endswith(
        "with exit code 127: exec:. Expected docker exec NAME rabbitmqctl eval, or ssh HOST sudo rabbitmqctl eval"
    )


@pytest.mark.parametrize("command", ["", "   ", "docker 'exec", [], [1]])
def test_a_command_that_cannot_work_is_refused(command) -> None:
    with pytest.raises(InvalidValue, match="rabbitmqctl eval"):
        NodeCommand(command)


class Node:
    """Answers what it is told to."""

    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def eval(self, expression: str) -> str:
        self.asked.append(expression)
        return self.answer


def test_all_rings_of_a_virtual_host_are_read_at_once() -> None:
    lines = [
        f"ring {encoded('a b')}", f"0 queue {encoded('ring x')}", f"1 exchange {encoded('done')}",
        "ring ", f"ring {encoded('torn')}", f"1 queue {encoded('q')}", "done",
    ]  # fmt: skip
    node = Node("\n".join(lines))
    rings = read_rings(node, "v/'")
    torn = rings.pop("torn")
    assert rings == {"a b": ["ring x", ToExchange("done")], "": []}
    assert isinstance(torn, RingUnknown)
    assert "'torn' has bucket 1 where 0 should be" in str(torn)
    assert node.asked == [rings_expression("v/'")]
    assert "VHost = <<118,47,39>>" in node.asked[0]


@pytest.mark.parametrize("text", ["", "ring eA==", "0 queue eA==\ndone", "Error\ndone"])
def test_an_answer_that_is_cut_off_is_no_ring(text) -> None:
    with pytest.raises(RingUnknown):
        parse_rings(text)


def test_a_virtual_host_without_rings_has_none() -> None:
    assert parse_rings("done") == {}


def test_the_pool_size_is_a_number_or_unknown() -> None:
    assert read_worker_pool_size(Node("2")) == 2
    assert read_worker_pool_size(Node("{badrpc,undef}")) is None
