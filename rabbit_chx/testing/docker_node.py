"""A broker in a Docker container, through testcontainers.

The container differs from the one testcontainers brings for RabbitMQ, which knows no plugins, no HTTP API
and no restart. Three things here are not obvious:

- The ports are chosen here and not by Docker, because Docker chooses new ones at every restart.
- The host name is fixed, because RabbitMQ names its data directory after it.
- testcontainers would first start a second container that cleans up after crashes, from an image that not
  every machine can pull. It does without; `cleanup` removes the container instead.

Importing this file needs testcontainers (``pip install 'rabbit-chx[testing]'``).
"""

from __future__ import annotations

import contextlib
import gc
import warnings
from typing import TYPE_CHECKING, cast

from docker.errors import APIError, DockerException, ImageNotFound, InvalidArgument, NotFound
from testcontainers.core.config import ConnectionMode, testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient

from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.testing.node import (
    READY,
    STOP_SECONDS,
    CannotSupply,
    Settings,
    Source,
    amqp_url,
    ctl_output,
    free_ports,
    render_config,
    render_plugins,
    wait_for_amqp,
    wait_for_boot,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import docker

DEFAULT_RELEASE = "4.3"
AMQP = 5672
HTTP = 15672
LOOPBACK = "127.0.0.1"
HOST_NAME = "rabbit-chx"
NETWORK = "bridge"  # where containers are that ask for no other


def find(release: str | None) -> Source:
    """Return Docker as a source, if an engine answers; the image is looked for when the node starts."""
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
        # Docker's library leaves the socket of the failed attempt to the garbage collector, which warns.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    raise CannotSupply(f"Docker: no engine answers ({problem})")


class DockerNode:
    """One container of the official image, or of one that keeps its contract."""

    def __init__(self, image: str, settings: Settings) -> None:
        self._image = image
        self._settings = settings
        self._container: DockerContainer | None = None
        self._addresses: dict[int, tuple[str, int]] = {}  # asked for again and again, and slow to learn

    @property
    def url(self) -> str:
        """The AMQP URL as seen from this machine."""
        return amqp_url(*self._address(AMQP), self._settings)

    @property
    def management_url(self) -> str | None:
        """The URL of the HTTP API as seen from this machine."""
        host, port = self._address(HTTP)
        return f"http://{host}:{port}"

    def start(self) -> None:
        """Pull the image if need be, start the container and wait for the node."""
        for _ in range(5):
            self._container = self._new_container()
            try:
                with _without_reaper():
                    self._container.start()
                break
            except APIError as error:
                self.stop()
                if not any(hint in str(error) for hint in ("already allocated", "already in use")):
                    raise BrokerUnavailable(
                        f"Docker cannot start {self._image}: {_one_line(error)}"
                    ) from None
            except InvalidArgument as error:
                # Inside a container that shares the host's network, testcontainers puts ours there too.
                self.stop()
                raise CannotSupply(f"Docker: {_one_line(error)}") from None
        else:
            raise BrokerUnavailable("Docker found each of five chosen ports taken")
        self._wait(boots=1)

    def stop(self) -> None:
        """Remove the container and its data."""
        container, self._container = self._container, None
        self._addresses.clear()
        if container is not None:
            with contextlib.suppress(NotFound):  # somebody else removed it
                container.stop()

    def restart(self) -> None:
        """Restart the container."""
        boots = self.logs().count(READY)
        self._started().get_wrapped_container().restart(timeout=STOP_SECONDS)
        self._wait(boots=boots + 1)

    def kill(self) -> None:
        """Kill the container; its file system stays for a restart."""
        self._started().get_wrapped_container().kill()

    def pause(self) -> None:
        """Freeze every process of the container."""
        self._started().get_wrapped_container().pause()

    def unpause(self) -> None:
        """Thaw them."""
        self._started().get_wrapped_container().unpause()

    def disconnect(self) -> None:
        """Take the container off Docker's default network, and its published ports with it."""
        container = self._started().get_wrapped_container()
        container.client.networks.get(NETWORK).disconnect(container)

    def reconnect(self) -> None:
        """Put it back, maybe with another address inside; the published ports stay."""
        container = self._started().get_wrapped_container()
        container.client.networks.get(NETWORK).connect(container)
        container.reload()
        address = container.attrs["NetworkSettings"]["Networks"][NETWORK]["IPAddress"]
        # Docker appends the new address behind the old one, which may be another container's by now.
        hosts = f"127.0.0.1 localhost\\n{address} {HOST_NAME}\\n"
        container.exec_run(["sh", "-c", f"printf '{hosts}' >/etc/hosts"], user="root")
        self._addresses.clear()
        wait_for_amqp(self.url)

    def ctl(self, *arguments: str) -> str:
        """Run rabbitmqctl in the container, as the user whose cookie the node reads."""
        code, (output, errors) = (
            self._started()
            .get_wrapped_container()
            .exec_run(["rabbitmqctl", *arguments], user="rabbitmq", demux=True)
        )
        return ctl_output(arguments, code, output or b"", errors or b"")

    def logs(self) -> str:
        """Return what the container wrote so far."""
        output: bytes = self._started().get_wrapped_container().logs()
        return output.decode("utf-8", "replace")

    def _new_container(self) -> DockerContainer:
        container = DockerContainer(self._image)
        docker = container.get_docker_client()
        try:
            if not _has(docker.client, container.image):
                docker.client.images.pull(container.image)
        except DockerException as error:
            raise CannotSupply(
                f"Docker: the image {container.image} cannot be pulled ({_one_line(error)})"
            ) from None
        # Beyond this machine's own engine the loopback interface would be somebody else's.
        here = docker.get_connection_mode() is ConnectionMode.docker_host and _is_loopback(docker.host())
        interface = LOOPBACK if here else "0.0.0.0"  # noqa: S104
        amqp, http = free_ports(2)
        ports = {f"{AMQP}/tcp": (interface, amqp), f"{HTTP}/tcp": (interface, http)}
        container.ports = cast("dict[str, int | None]", ports)  # Docker's own library takes the pairs
        settings = self._settings
        return (
            container.with_kwargs(hostname=HOST_NAME)
            .with_copy_into_container(
                render_plugins(settings.plugins).encode(), "/etc/rabbitmq/enabled_plugins"
            )
            .with_copy_into_container(
                render_config(settings).encode(), "/etc/rabbitmq/conf.d/90-rabbit-chx.conf"
            )
        )

    def _wait(self, *, boots: int) -> None:
        wait_for_boot(boots, logs=self.logs, running=self._running)
        self._addresses.clear()
        wait_for_amqp(self.url)

    def _running(self) -> bool:
        container = self._started().get_wrapped_container()
        container.reload()
        return bool(container.status in {"created", "running"})

    def _started(self) -> DockerContainer:
        if self._container is None:
            raise BrokerUnavailable("the broker is not running: it was not started, or was stopped")
        return self._container

    def _address(self, port: int) -> tuple[str, int]:
        container = self._started()
        if port not in self._addresses:
            host = container.get_container_host_ip()
            self._addresses[port] = (
                LOOPBACK if _is_loopback(host) else host,
                container.get_exposed_port(port),
            )
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
    """Switch the reaper off for our container, and leave it as it was for everybody else's."""
    before = testcontainers_config.ryuk_disabled
    testcontainers_config.ryuk_disabled = True
    try:
        yield
    finally:
        testcontainers_config.ryuk_disabled = before
