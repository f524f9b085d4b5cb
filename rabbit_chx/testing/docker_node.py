"""A broker in a Docker container, through testcontainers.

testcontainers has its own RabbitMQ container, but without plugins, HTTP API and restarts. Three details:

- The ports are chosen here, because Docker chooses new ones at every restart.
- The host name is fixed, because RabbitMQ names its data directory after it.
- The reaper of testcontainers is disabled, because its image cannot be pulled everywhere; `cleanup` removes the container instead.

Importing this module needs testcontainers (``pip install 'rabbit-chx[testing]'``).
"""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Iterator
from typing import cast

import docker
from docker.errors import APIError, DockerException, ImageNotFound, InvalidArgument, NotFound
from docker.models.containers import Container
from testcontainers.core.config import ConnectionMode, testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient

from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.testing.node import (
    AMQP,
    CTL_SECONDS,
    HTTP,
    LOOPBACK,
    READY,
    STOP_SECONDS,
    STREAMS,
    CannotSupply,
    NodeSettings,
    OwnNode,
    Source,
    ctl_output,
    free_ports,
    render_config,
    render_plugins,
    too_long,
    wait_for_amqp,
    wait_for_boot,
)

DEFAULT_RELEASE = "4.3"
"""Not ``NEWEST``: a series is mirrored before its image is published."""
HOST_NAME = "rabbit-chx"
NETWORK = "bridge"  # the default network of containers
PAUSES = 20  # on a busy host, the runtime may give up twice in a row


def find(release: str | None) -> Source:
    """Return Docker as a source if its engine answers."""
    image = f"rabbitmq:{release or DEFAULT_RELEASE}-management"
    try:
        client = DockerClient().client
        client.ping()
        here = _has(client, image)
        client.close()
    except (DockerException, OSError) as error:
        problem = _one_line(error)
    else:
        return Source(
            "docker",
            f"a Docker container of {image}" + ("" if here else " (to be pulled)"),
            lambda settings: DockerNode(image, settings),
        )
    with warnings.catch_warnings():
        # Docker's library leaves the socket of the failed attempt open, and collecting it warns.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    raise CannotSupply(f"Docker: no engine answers ({problem})")


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Raise what Docker refuses, such as a command in a paused container, as an error of this package."""
    try:
        yield
    except APIError as error:
        raise BrokerUnavailable(f"Docker: {_one_line(error)}") from None


class DockerNode(OwnNode):
    """A container of the official image, or of a compatible one."""

    def __init__(self, image: str, settings: NodeSettings) -> None:
        super().__init__(settings)
        self._image = image
        self._container: DockerContainer | None = None
        self._addresses: dict[int, tuple[str, int]] = {}  # a cache: asking Docker is slow

    def start(self) -> None:
        """Pull the image if necessary, start the container and wait for the node."""
        for _ in range(5):
            self._container = self._new_container()
            try:
                with _without_reaper():
                    self._container.start()
                break
            except APIError as error:
                self.stop()
                if not any(hint in str(error) for hint in ("already allocated", "already in use")):
                    problem = f"Docker cannot start {self._image}: {_one_line(error)}"
                    raise BrokerUnavailable(problem) from None
            except InvalidArgument as error:
                # In a container that shares the host's network, testcontainers connects ours to it, too.
                self.stop()
                raise CannotSupply(f"Docker: {_one_line(error)}") from None
        else:
            raise BrokerUnavailable("Docker could not start a container: five random ports were in use")
        self._wait(boots=1)

    def stop(self) -> None:
        """Remove the container and its data."""
        container, self._container = self._container, None
        self._addresses.clear()
        if container is not None:
            with contextlib.suppress(NotFound):  # it has been removed already
                container.stop()

    @_refusals()
    def restart(self) -> None:
        """Restart the container."""
        boots = self.logs().count(READY)
        self._docker.restart(timeout=STOP_SECONDS)
        self._wait(boots=boots + 1)

    @_refusals()
    def kill(self) -> None:
        """Kill the container; its file system is kept for a restart."""
        self._docker.kill()

    @_refusals()
    def pause(self) -> None:
        """Suspend the processes of the container."""
        for remaining in reversed(range(PAUSES)):
            try:
                self._docker.pause()
            except APIError as error:
                if not remaining or "unable to freeze" not in str(error):
                    raise
            else:
                break

    @_refusals()
    def unpause(self) -> None:
        """Resume the processes."""
        self._docker.unpause()

    @_refusals()
    def disconnect(self) -> None:
        """Disconnect the container from Docker's default network, and so its published ports."""
        self._docker.client.networks.get(NETWORK).disconnect(self._docker)

    @_refusals()
    def reconnect(self) -> None:
        """Reconnect the container; its address may change, its published ports do not."""
        container = self._docker
        container.client.networks.get(NETWORK).connect(container)
        container.reload()
        address = container.attrs["NetworkSettings"]["Networks"][NETWORK]["IPAddress"]
        # Docker appends the new address and keeps the old one, which another container may have by now.
        hosts = f"127.0.0.1 localhost\\n{address} {HOST_NAME}\\n"
        container.exec_run(["sh", "-c", f"printf '{hosts}' >/etc/hosts"], user="root")
        self._addresses.clear()
        wait_for_amqp(self.url)

    @_refusals()
    def ctl(self, *arguments: str) -> str:
        """Run rabbitmqctl in the container, as the user who owns the Erlang cookie."""
        command = ["timeout", "-k", "10", f"{CTL_SECONDS:g}", "rabbitmqctl", *arguments]
        code, (output, errors) = self._docker.exec_run(command, user="rabbitmq", demux=True)
        if code in {124, 137, 143}:  # of `timeout`, or of what it killed
            raise too_long(arguments)
        return ctl_output(arguments, code, output or b"", errors or b"")

    @_refusals()
    def logs(self) -> str:
        """Return the output of the container so far."""
        output: bytes = self._docker.logs()
        return output.decode("utf-8", "replace")

    def _new_container(self) -> DockerContainer:
        container = DockerContainer(self._image)
        docker = container.get_docker_client()
        try:
            if not _has(docker.client, container.image):
                docker.client.images.pull(container.image)
        except DockerException as error:
            problem = f"Docker: the image {container.image} cannot be pulled ({_one_line(error)})"
            raise CannotSupply(problem) from None
        # With a remote engine, the loopback interface would be that of the remote machine.
        here = docker.get_connection_mode() is ConnectionMode.docker_host and _is_loopback(docker.host())
        interface = LOOPBACK if here else "0.0.0.0"  # noqa: S104
        exposed = [AMQP, HTTP, *([STREAMS] if self._has_streams else [])]
        own = free_ports(len(exposed))
        ports = {f"{port}/tcp": (interface, free) for port, free in zip(exposed, own, strict=True)}
        container.ports = cast("dict[str, int | None]", ports)  # Docker's library accepts pairs
        plugins, config = render_plugins(self._settings.plugins), render_config(self._settings)
        container.with_copy_into_container(plugins.encode(), "/etc/rabbitmq/enabled_plugins")
        container.with_copy_into_container(config.encode(), "/etc/rabbitmq/conf.d/90-rabbit-chx.conf")
        return container.with_kwargs(hostname=HOST_NAME)

    def _wait(self, *, boots: int) -> None:
        wait_for_boot(boots, logs=self.logs, running=self._running)
        self._addresses.clear()
        wait_for_amqp(self.url)

    @_refusals()
    def _running(self) -> bool:
        self._docker.reload()
        return bool(self._docker.status in {"created", "running"})

    @property
    def _docker(self) -> Container:
        return self._started().get_wrapped_container()

    def _started(self) -> DockerContainer:
        if self._container is None:
            raise BrokerUnavailable("the broker is not running: it was not started, or was stopped")
        return self._container

    def _address(self, port: int) -> tuple[str, int]:
        container = self._started()
        if port not in self._addresses:
            host = container.get_container_host_ip()
            address = LOOPBACK if _is_loopback(host) else host
            self._addresses[port] = (address, container.get_exposed_port(port))
        return self._addresses[port]


def _has(client: docker.DockerClient, image: str) -> bool:
    try:
        client.images.get(image)
    except ImageNotFound:
        return False
    return True


def _one_line(error: Exception) -> str:
    reason = error.explanation if isinstance(error, APIError) else str(error)
    return " ".join(str(reason).split())[:160]


def _is_loopback(host: str) -> bool:
    return host in {"localhost", "127.0.0.1", "::1"}


@contextlib.contextmanager
def _without_reaper() -> Iterator[None]:
    """Disable the reaper for our container only."""
    before = testcontainers_config.ryuk_disabled
    testcontainers_config.ryuk_disabled = True
    try:
        yield
    finally:
        testcontainers_config.ryuk_disabled = before
