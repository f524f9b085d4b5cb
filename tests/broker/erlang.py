"""A second Erlang in the broker's container, kept running and asked over a pipe.

`rabbitmqctl` starts an Erlang for each command, which takes a second. Here a command takes ten milliseconds, so that a
broker can be looked at after each of a thousand steps, and a program of a test can be asked for ten million hashes.

Docker only: elsewhere it is not known how to run a program beside the broker.
"""

from __future__ import annotations

import shlex
import shutil
import socketserver
import subprocess
import sys
import threading
from base64 import b64decode, b64encode
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Self

import pytest

from rabbit_chx.testing.node import ctl_output
from tests.proof import LONG

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rabbit_chx.testing import Broker

# The program of rabbitmqctl, with commands from its input: each line has the arguments of one, in base64 because they may
# have several lines. The output of each ends with a line of its exit code and its error.
_RABBITMQCTL = r"""
{ok, Parts} = escript:extract(escript:script_name(), []),
{archive, Archive} = lists:keyfind(archive, 1, Parts),
{ok, Files} = zip:extract(Archive, [{cwd, "/tmp/rabbitmqctl"}]),
code:add_pathsz(lists:usort([filename:dirname(File) || File <- Files])),
{ok, _} = application:ensure_all_started(rabbitmqctl),
logger:set_primary_config(level, none),
Print = fun(Output, Command, Options) ->
            Formatter = 'Elixir.RabbitMQ.CLI.Core.Config':get_formatter(Command, Options),
            Printer = 'Elixir.RabbitMQ.CLI.Core.Config':get_printer(Command, Options),
            Formatted = 'Elixir.RabbitMQ.CLI.Core.Output':format_output(Output, Formatter, Options),
            'Elixir.RabbitMQ.CLI.Core.Output':print_output(Formatted, Printer, Options)
        end,
Loop = fun Loop(eof) ->
               halt();
           Loop(Line) ->
               Arguments = binary:split(base64:decode(string:trim(Line)), <<0>>, [global]),
               {Code, Error} = case catch 'Elixir.RabbitMQCtl':exec_command(Arguments, Print) of
                                   {error, Failed, Text} when is_binary(Text) -> {Failed, Text};
                                   {error, Failed, _} -> {Failed, <<>>};
                                   {'EXIT', Why} -> {70, io_lib:format("~tp", [Why])};
                                   _ -> {0, <<>>}
                               end,
               io:format("~n~c~w ~s~n", [0, Code, base64:encode(unicode:characters_to_binary(Error))]),
               Loop(io:get_line(""))
       end,
Loop(io:get_line("")).
"""
# As the script rabbitmqctl starts it, whose folder and settings rabbitmq-env knows.
_START = """\
set -a
RABBITMQ_SCRIPTS_DIR=$(dirname "$(readlink -f "$(command -v rabbitmqctl)")")
. "$RABBITMQ_SCRIPTS_DIR/rabbitmq-env"
ERL_LIBS=$RABBITMQ_HOME/plugins
exec erl -noshell -hidden -boot "$CLEAN_BOOT_FILE" -eval "$0" -extra "$ESCRIPT_DIR/rabbitmqctl"
"""
_END = b"\0"
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
    """As `node_command`, over the program of `asked_quickly`; in `make proof` the same command."""
    return node_command(broker) if LONG else broker.ctl.command()


class Ended(RuntimeError):
    """The program in the container has ended, perhaps with the container."""


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

    def _died(self) -> Ended:
        return Ended(f"the Erlang beside the broker has ended ({self._process.wait()})")


class Control(Erlang):
    """Runs commands of `rabbitmqctl` and answers the same."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, "sh", "-c", _START, _RABBITMQCTL)

    def run(self, *arguments: str) -> tuple[int, bytes, bytes]:
        """Run a command and return its exit code, its output and its error."""
        self._send(b64encode("\0".join(arguments).encode()), b"\n")
        lines = []
        while not (line := self._process.stdout.readline()).startswith(_END):
            if not line:
                raise self._died()
            lines.append(line)
        code, error = line.removeprefix(_END).rstrip(b"\n").split(b" ")
        return int(code), b"".join(lines), b64decode(error)


class Asking:
    """`Broker.ctl` at ten milliseconds a command, where the broker is a container."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._plain = broker.ctl
        self._control: Control | None = None
        self._server: socketserver.BaseServer | None = None
        self._lock = threading.Lock()

    def __call__(self, *arguments: str) -> str:
        # A command that waits, perhaps for another one, keeps no other waiting.
        if self._broker.source.kind != "docker" or not self._lock.acquire(blocking=False):
            return self._plain(*arguments)
        try:
            # A second try, since the container may have been started again.
            found = self._kept(*arguments) or self._kept(*arguments)
        finally:
            self._lock.release()
        return ctl_output(arguments, *found) if found else self._plain(*arguments)

    def _kept(self, *arguments: str) -> tuple[int, bytes, bytes] | None:
        """What the program that is kept answers; nothing if it has ended, as it does where the container does not run."""
        try:
            if self._control is None:
                self._control = Control(self._broker).__enter__()
            return self._control.run(*arguments, "--quiet")
        except BaseException as error:
            self._end()  # an answer that nothing has read would be taken for the next one
            if isinstance(error, (BrokenPipeError, Ended)):
                return None
            raise

    def command(self) -> str:
        """A command of the shell that evaluates its last argument."""
        container_of(self._broker)
        if self._server is None:
            self._server = self._serving()
            threading.Thread(target=self._server.serve_forever, daemon=True, name="asking").start()
        client = [sys.executable, "-S", "-E", "-c", _CLIENT, str(self._server.server_address)]
        return shlex.join(client)

    def _serving(self) -> socketserver.BaseServer:
        ask = self._broker.eval

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.wfile.write(ask(self.rfile.read().decode()).encode())

        return socketserver.ThreadingUnixStreamServer(f"{mkdtemp()}/socket", Handler)

    def disconnect(self) -> None:
        """Disconnect the node as `Broker.disconnect` does; it returns with an address that the kept program does not know."""
        with self._lock:
            self._end()
        type(self._broker).disconnect(self._broker)

    def close(self) -> None:
        self._end()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            shutil.rmtree(Path(self._server.server_address).parent)

    def _end(self) -> None:
        control, self._control = self._control, None
        if control is not None:
            control._process.kill()
            control.__exit__()


@contextmanager
def asked_quickly(broker: Broker) -> Iterator[None]:
    """Have `Broker.ctl`, and with it `Broker.eval`, `Broker.ring` and `Broker.store`, asked of a program that is kept."""
    with closing(Asking(broker)) as asking:
        broker.ctl = asking
        broker.disconnect = asking.disconnect
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
