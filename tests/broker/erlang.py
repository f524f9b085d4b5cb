"""A second Erlang in the broker's container, kept running and asked over a pipe.

`rabbitmqctl eval` starts an Erlang for each question, which takes a second. Here a question takes a millisecond, so
that a broker can be looked at after each of ten thousand steps, and ten million hashes can be asked for.

Docker only: elsewhere it is not known how to run a program beside the broker.
"""

from __future__ import annotations

import shlex
import shutil
import socketserver
import subprocess
import sys
import threading
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Self

import pytest

from tests.proof import LONG

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rabbit_chx.testing import Broker

# Reads an expression from each line, has the node evaluate it, and ends what that prints with a line of its own. What
# is printed on the way comes here too: the node sends it to whoever asked.
_SHELL = r"""
{ok, Host} = inet:gethostname(),
Node = list_to_atom("rabbit@" ++ Host),
Loop = fun Loop(eof) ->
               halt();
           Loop(Line) ->
               {ok, Tokens, _} = erl_scan:string(Line),
               {ok, Expressions} = erl_parse:parse_exprs(Tokens),
               {value, Value, _} = rpc:call(Node, erl_eval, exprs, [Expressions, []]),
               io:format("~tp~n~s~n", [Value, [0]]),
               Loop(io:get_line(""))
       end,
Loop(io:get_line("")).
"""
_END = b"\0\n"
_CLIENT = """\
import socket, sys
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
client.sendall(sys.argv[2].encode())
client.shutdown(socket.SHUT_WR)
print(client.makefile().read())
"""
"""Sends a question to `Asking`, and prints the answer."""


def container_of(broker: Broker) -> str:
    """The id of the container that the broker runs in."""
    if broker.source.kind != "docker":
        pytest.skip("an Erlang can be started beside the broker only where that is a container")
    return broker._node._container.get_container_id()


def node_command(broker: Broker) -> str:
    """The command of a user that evaluates its last argument on the broker's node."""
    return f"docker exec -u rabbitmq {container_of(broker)} rabbitmqctl eval"


def quick_command(broker: Broker) -> str:
    """As `node_command`, over the shell of `asked_quickly`; in `make proof` the same command."""
    return node_command(broker) if LONG else broker.eval.command()


class Erlang:
    """A program in the broker's container, and the pipe to it."""

    def __init__(self, broker: Broker, *command: str) -> None:
        self._command = ["docker", "exec", "-i", "-u", "rabbitmq", container_of(broker), *command]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(self, *_: object) -> None:
        """Close its input, at which the program ends."""
        self._process.communicate()

    def _send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self._process.stdin.write(piece)
        self._process.stdin.flush()

    def _died(self) -> RuntimeError:
        return RuntimeError(f"the Erlang beside the broker has ended ({self._process.wait()})")


class Shell(Erlang):
    """Evaluates on the broker's node what `Broker.eval` does, and answers the same."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, "erl", "-noshell", "-hidden", "-sname", "shell", "-eval", _SHELL)

    def eval(self, expression: str) -> str:
        """Evaluate an Erlang expression on the node and return what was printed, its value last."""
        line = " ".join(expression.split()).removesuffix(".")
        self._send(line.encode(), b".\n")
        lines = []
        while (line := self._process.stdout.readline()) != _END:
            if not line:
                raise self._died()
            lines.append(line)
        return b"".join(lines).decode().rstrip("\n")


class Asking:
    """`Broker.eval` at a millisecond a question: over a shell that is kept, where the broker is a container."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._plain = broker.eval
        self._shell: Shell | None = None
        self._server: socketserver.BaseServer | None = None
        self._lock = threading.Lock()

    def __call__(self, expression: str) -> str:
        if self._broker.source.kind != "docker":
            return self._plain(expression)
        with self._lock:
            try:
                return self._kept().eval(expression)
            except (BrokenPipeError, RuntimeError):  # the container has been started again since
                self._end()
                return self._kept().eval(expression)

    def command(self) -> str:
        """A command that evaluates its last argument."""
        container_of(self._broker)
        if self._server is None:
            self._server = self._serving()
            threading.Thread(target=self._server.serve_forever, daemon=True, name="asking").start()
        client = [sys.executable, "-S", "-E", "-c", _CLIENT, str(self._server.server_address)]
        return shlex.join(client)

    def _serving(self) -> socketserver.BaseServer:
        ask = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.wfile.write(ask(self.rfile.read().decode()).encode())

        return socketserver.ThreadingUnixStreamServer(f"{mkdtemp()}/socket", Handler)

    def close(self) -> None:
        self._end()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            shutil.rmtree(Path(self._server.server_address).parent)

    def _end(self) -> None:
        shell, self._shell = self._shell, None
        if shell is not None:
            shell.__exit__()

    def _kept(self) -> Shell:
        if self._shell is None:
            self._shell = Shell(self._broker).__enter__()
        return self._shell


@contextmanager
def asked_quickly(broker: Broker) -> Iterator[None]:
    """Have `Broker.eval`, and with it `Broker.ring` and `Broker.store`, answer over a shell that is kept."""
    with closing(Asking(broker)) as asking:
        broker.eval = asking
        yield


class Packets(Erlang):
    """An escript that answers packets: four bytes of length, and so many bytes."""

    def __init__(self, broker: Broker, program: Path) -> None:
        inside = f"/tmp/{program.name}"  # the container is thrown away with everything in it
        target = f"{container_of(broker)}:{inside}"
        subprocess.run(["docker", "cp", program, target], check=True, capture_output=True)
        super().__init__(broker, "escript", inside)

    def ask(self, *pieces: bytes) -> bytes:
        """Send one packet, and return the one that answers it."""
        self._send(sum(map(len, pieces)).to_bytes(4, "big"), *pieces)
        return self._read(int.from_bytes(self._read(4), "big"))

    def _read(self, size: int) -> bytes:
        read = self._process.stdout.read(size)
        if len(read) < size:
            raise self._died()
        return read
