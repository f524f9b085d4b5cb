"""Ask a node for its rings and the consumers of its streams, through a command of the user that ends in ``rabbitmqctl eval``.

    node = NodeCommand("docker exec rabbit rabbitmqctl eval")
    node = NodeCommand("ssh broker-1 sudo rabbitmqctl eval")

The Erlang expression becomes the last argument. No local shell sees it; for a shell behind ``ssh`` it is quoted. Errors
name only the program, since the rest of the command may hold a password.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Final, Protocol

from rabbit_chx.base.text import sentences, without_secrets
from rabbit_chx.broker.management_rows import StreamConsumer
from rabbit_chx.broker.reading.erlang_rings import decoded_name, erlang_binary, parse_rings, rings_expression
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, RingUnknown
from rabbit_chx.mirror.ring import Destination

_EXAMPLE: Final = "docker exec NAME rabbitmqctl eval, or ssh HOST sudo rabbitmqctl eval"
_SHOWN: Final = 500
_REPEATED: Final = 20
"""Characters of an expression that are enough to recognize it."""
_NOTHING_RUN: Final = (126, 127)
"""The exit codes of shells and of docker when they cannot run a program."""

_CONSUMERS: Final = """
[case rabbit_stream_sac_coordinator:group_consumers({vhost}, Stream, {group}, [connection_name, state]) of
     {{ok, Consumers}} ->
         [io:put_chars([base64:encode(iolist_to_binary(io_lib:format("~s", [State]))), " ",
                        base64:encode(Stream), " ", base64:encode(Name), "\\n"])
          || [{{connection_name, Name}}, {{state, State}}] <- Consumers];
     {{error, not_found}} -> []
 end
 || Stream <- [{streams}]],
done.
"""
"""Prints a line for each consumer, the state first and each text as base64, and ``done`` at the end."""


class NodeAccess(Protocol):
    """Something that evaluates Erlang on a node, such as `NodeCommand` or ``rabbit_chx.testing.Broker``."""

    def eval(self, expression: str) -> str:
        """What the expression printed, its value last."""


class NodeCommand:
    """A command that evaluates its last argument on a node.

    Args:
        command: a line as for a shell, in which only quotes have a meaning, or its words.
        timeout: seconds for one evaluation; starting ``rabbitmqctl`` alone takes a second or two.
    """

    def __init__(self, command: str | Sequence[str], *, timeout: float = 30.0) -> None:
        self._words = _words(command)
        self._remote_shell = any(PurePath(word).name == "ssh" for word in self._words)
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"<NodeCommand {self._words[0]!r}>"

    def eval(self, expression: str) -> str:
        """What the expression printed, its value last."""
        expression = expression.rstrip().removesuffix(".") + "."
        last = shlex.quote(expression) if self._remote_shell else expression
        program = self._words[0]
        try:
            done = subprocess.run(  # noqa: S603 - it is the user's own command, and no shell reads it
                [*self._words, last],
                check=False,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=self._timeout,
            )
        except subprocess.TimeoutExpired:
            raise BrokerUnavailable(
                f"the node command ({program} ...) did not end within {self._timeout:g} seconds: does it ask for "
                "a password?"
            ) from None
        except (OSError, ValueError) as error:  # ValueError: a NUL in a word
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise BrokerUnavailable(f"the node command ({program} ...) cannot be run: {reason}") from None
        output = done.stdout.decode("utf-8", "replace").replace("\r\n", "\n").strip("\n")
        if done.returncode:
            complaint = _gist(done.stderr.decode("utf-8", "replace").strip() or output, expression)
            said = f": {complaint}" if complaint else " and said nothing"
            hint = f"Expected {_EXAMPLE}" if done.returncode in _NOTHING_RUN else ""
            failed = f"the node command ({program} ...) failed with exit code {done.returncode}{said}"
            raise BrokerUnavailable(sentences(failed, hint))
        return output


def read_rings(node: NodeAccess, vhost: str) -> dict[str, list[Destination] | RingUnknown]:
    """The buckets of every ring of a virtual host, or why they cannot be read."""
    return parse_rings(node.eval(rings_expression(vhost)), vhost=vhost)


def read_worker_pool_size(node: NodeAccess) -> int | None:
    """``default_worker_pool_size`` of the node; None if the answer is not a number."""
    text = node.eval("worker_pool_sup:default_pool_size().")
    return int(text) if text.isdecimal() else None


def read_stream_consumers(
    node: NodeAccess, vhost: str, group: str, streams: Iterable[str]
) -> list[StreamConsumer]:
    """Return the consumers of a group on these streams, as ``rabbitmq-streams list_stream_group_consumers`` does.

    Releases name the states differently: "active" and "inactive" in 4.0, "active (connected)" and "waiting (connected)" in 4.3.

    Raises:
        BrokerUnavailable: the command failed, or its output is not what a node prints.
    """
    names = ",".join(map(erlang_binary, streams))
    expression = _CONSUMERS.format(vhost=erlang_binary(vhost), group=erlang_binary(group), streams=names)
    *lines, end = node.eval(" ".join(expression.split())).split("\n")
    try:
        found = [_consumer(line) for line in lines]
    except ValueError:
        end = ""
    if end != "done":
        raise BrokerUnavailable("the node command did not print the consumers of the group to their end")
    return found


def _consumer(line: str) -> StreamConsumer:
    state, stream, connection = map(decoded_name, line.split(" "))
    return StreamConsumer(stream, connection, active=state.startswith("active"))


def _words(command: str | Sequence[str]) -> tuple[str, ...]:
    problem = InvalidValue(
        "node command",
        "a command that cannot be used",  # not shown, because it may hold a password
        _EXAMPLE,
        "The Erlang expression is appended as the last argument",
    )
    try:
        words = tuple(shlex.split(command) if isinstance(command, str) else command)
    except ValueError:  # a quote that does not end
        raise problem from None
    if not words or not all(isinstance(word, str) for word in words):
        raise problem
    # Without a verb, rabbitmqctl takes the expression for one.
    return (*words, "eval") if words[-1].endswith("rabbitmqctl") else words


def _gist(complaint: str, expression: str) -> str:
    """The complaint without the arguments, which rabbitmqctl and docker repeat."""
    text = complaint.partition("Arguments given:")[0].partition(expression[:_REPEATED])[0].strip(' "')
    text = without_secrets(text)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
