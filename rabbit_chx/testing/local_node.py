"""A private node of the ``rabbitmq-server`` that is installed on this machine.

It has a temporary folder, its own ports, Erlang cookie and port mapper (epmd), and does not disturb a broker that already runs here. Two details:

- It uses the plain scripts of the server: the wrappers that packages put on the PATH switch to the user rabbitmq, or refuse other users.
- The node's host is ``localhost``, because the machine's name may not resolve.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.testing.node import (
    AMQP,
    HTTP,
    LOOPBACK,
    READY,
    STOP_SECONDS,
    STREAMS,
    CannotSupply,
    NodeSettings,
    OwnNode,
    Source,
    free_ports,
    is_release,
    render_config,
    render_plugins,
    run_ctl,
    wait_for_amqp,
    wait_for_boot,
)

# The plain scripts in the packages of Debian, Ubuntu and Fedora.
PACKAGED = "usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin"


def find(release: str | None, *, root: str = "/") -> Source:
    """Return the installed server, if it is of the requested release."""
    scripts, version = _installed(root)
    if not is_release(version, release):
        raise CannotSupply(f"a local rabbitmq-server: {version} is installed, not {release}")
    if shutil.which("erl") is None:
        raise CannotSupply(f"a local rabbitmq-server: {version} is installed, but no erl is on the PATH")
    return Source(
        "local",
        f"a private node of the installed rabbitmq-server {version}",
        lambda settings: LocalNode(scripts, settings),
    )


def _installed(root: str) -> tuple[Path, str]:
    """Return the folder of the plain scripts and the server's version."""
    folders = sorted(Path(root).glob(PACKAGED), reverse=True)
    on_path = shutil.which("rabbitmq-server")
    if on_path is not None:
        folders.insert(0, Path(on_path).resolve().parent)
    for folder in folders:
        # Only the plain scripts have a sibling folder `plugins`; the server's core is one of its files.
        for core in (folder.parent / "plugins").glob("rabbit-*"):
            found = re.fullmatch(r"rabbit-([0-9]+\.[0-9]+\.[0-9]+.*?)(\.ez)?", core.name)
            if found and (folder / "rabbitmq-server").is_file():
                return folder, found[1]
    raise CannotSupply("a local rabbitmq-server: none is on the PATH or in /usr/lib/rabbitmq")


class LocalNode(OwnNode):
    """A server process, a port mapper process and their folder."""

    def __init__(self, scripts: Path, settings: NodeSettings) -> None:
        super().__init__(settings)
        self._scripts = scripts
        self._folder: Path | None = None
        self._environment: dict[str, str] = {}
        self._mapper: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        """None also after `kill`: another process may get its id."""
        self._distribution, self._mapping, *own = free_ports(5)
        self._ports = dict(zip((AMQP, HTTP, STREAMS), own, strict=True))

    def _address(self, port: int) -> tuple[str, int]:
        return LOOPBACK, self._ports[port]

    def start(self) -> None:
        """Write the files, start the port mapper and the server, and wait for the node."""
        self._folder = Path(tempfile.mkdtemp(prefix="rabbit-chx-"))
        self._write_files(self._folder)
        self._environment = self._private_environment(self._folder)
        self._start_mapper()
        self._start_server(boots=1)

    def stop(self) -> None:
        """Kill both processes and remove the folder."""
        for process in (self._server, self._mapper):
            if process is not None and process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._server = self._mapper = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def restart(self) -> None:
        """Shut the server down and start it again."""
        boots = self.logs().count(READY)
        if self._server is not None:
            self._server.terminate()  # has no effect on a dead process
            try:
                self._server.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                with suppress(BrokerUnavailable):  # it has ended after all
                    self.kill()
        self._start_server(boots=boots + 1)

    def kill(self) -> None:
        """Kill the server and its child processes."""
        self._signal(signal.SIGKILL).wait()
        self._server = None

    def pause(self) -> None:
        """Suspend the server."""
        self._signal(signal.SIGSTOP)

    def unpause(self) -> None:
        """Resume the server."""
        self._signal(signal.SIGCONT)

    def disconnect(self) -> None:
        """Refuse: the node uses the loopback interface of this machine."""
        raise BrokerUnavailable("a local rabbitmq-server cannot be disconnected: use Docker")

    reconnect = disconnect

    def _signal(self, signum: int) -> subprocess.Popen[bytes]:
        self._running_folder()
        if self._server is None or self._server.poll() is not None:
            raise BrokerUnavailable(
                "the broker is not running: it was killed or has ended; restart() starts it"
            )
        os.killpg(self._server.pid, signum)
        return self._server

    def ctl(self, *arguments: str) -> str:
        """Run the plain rabbitmqctl in the node's environment."""
        self._running_folder()
        return run_ctl([str(self._scripts / "rabbitmqctl")], arguments, env=self._environment)

    def logs(self) -> str:
        """Return what the server wrote so far."""
        return (self._running_folder() / "server.log").read_text("utf-8", "replace")

    def _running_folder(self) -> Path:
        if self._folder is None:
            raise BrokerUnavailable("the broker is not running: it was not started, or was stopped")
        return self._folder

    def _write_files(self, folder: Path) -> None:
        cookie = folder / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        (folder / "enabled_plugins").write_text(render_plugins(self._settings.plugins))
        own = [
            ("listeners.tcp.local", f"{LOOPBACK}:{self._ports[AMQP]}"),
            ("management.tcp.ip", LOOPBACK),
            ("management.tcp.port", str(self._ports[HTTP])),
        ]
        if self._has_streams:  # without the plugin, this key is unknown and the server does not start
            own.append(("stream.listeners.tcp.local", f"{LOOPBACK}:{self._ports[STREAMS]}"))
        (folder / "rabbitmq.conf").write_text(render_config(self._settings, *own))
        # Without these two the server would read the machine's own files of that name.
        (folder / "rabbitmq-env.conf").touch()
        (folder / "advanced.config").write_text("[].\n")

    def _private_environment(self, folder: Path) -> dict[str, str]:
        """Return this process's environment with everything about a broker replaced."""
        alien = ("RABBITMQ_", "ERL_", "NOTIFY_SOCKET", "XDG_CONFIG_HOME")
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(alien)},
            "HOME": str(folder),  # where Erlang looks for its cookie
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._mapping),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "RABBITMQ_NODENAME": "rabbit@localhost",
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CONF_ENV_FILE": str(folder / "rabbitmq-env.conf"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": str(folder / "pid"),
        }

    def _start_mapper(self) -> None:
        """Start the port mapper: one that Erlang starts itself would outlive the node."""
        # epmd may be missing on our PATH, but not on Erlang's.
        found = subprocess.run(
            ["erl", "-noshell", "-eval", 'io:put_chars(os:find_executable("epmd")), halt().'],  # noqa: S607
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            text=True,
        )
        self._mapper = self._spawn(
            [found.stdout, "-port", str(self._mapping), "-address", LOOPBACK], "epmd.log"
        )
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection((LOOPBACK, self._mapping), timeout=1):
                return
            time.sleep(0.02)
        raise BrokerUnavailable("Erlang's port mapper epmd does not answer on the loopback interface")

    def _start_server(self, *, boots: int) -> None:
        server = self._server = self._spawn([str(self._scripts / "rabbitmq-server")], "server.log")
        wait_for_boot(boots, logs=self.logs, running=lambda: server.poll() is None)
        wait_for_amqp(self.url)

    def _spawn(self, command: list[str], log: str) -> subprocess.Popen[bytes]:
        """Start a process in its own group, so that Ctrl-C does not reach it."""
        with (self._running_folder() / log).open("ab") as output:
            return subprocess.Popen(  # noqa: S603  programs of the installation
                command,
                cwd=self._folder,  # where a crash dump would go
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
