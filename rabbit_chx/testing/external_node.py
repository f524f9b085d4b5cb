"""A running broker that environment variables name.

    RABBIT_CHX_BROKER_URL       amqp://user:password@host:5672/%2F   (amqps works too)
    RABBIT_CHX_MANAGEMENT_URL   http://host:15672                    if its HTTP API is enabled
    RABBIT_CHX_STREAM_URL       rabbitmq-stream://user:password@host:5552/%2F   if its stream plugin is enabled
    RABBIT_CHX_RABBITMQCTL      a command line that runs rabbitmqctl on its node, such as
                                docker exec -u rabbitmq NAME rabbitmqctl

It is never started, configured, restarted or stopped: each such request is an error that names the variable to change.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from typing import NoReturn, TypeVar

from pika.exceptions import AMQPError

from rabbit_chx.base.urls import BrokerUrl, ManagementUrl
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, RabbitChxError
from rabbit_chx.testing.node import CannotSupply, NodeSettings, Source, is_release, release_at, run_ctl

_Url = TypeVar("_Url", BrokerUrl, ManagementUrl)

URL_VARIABLE = "RABBIT_CHX_BROKER_URL"
MANAGEMENT_VARIABLE = "RABBIT_CHX_MANAGEMENT_URL"
STREAM_VARIABLE = "RABBIT_CHX_STREAM_URL"
RABBITMQCTL_VARIABLE = "RABBIT_CHX_RABBITMQCTL"


def find(release: str | None) -> Source:
    """Return the broker that the environment variables name."""
    url = os.environ[URL_VARIABLE]
    broker = _parsed(URL_VARIABLE, BrokerUrl.parse)
    address = f"{broker.host}:{broker.port}"
    management_url = None
    if os.environ.get(MANAGEMENT_VARIABLE):
        management_url = _parsed(MANAGEMENT_VARIABLE, ManagementUrl.parse).base

    def node(settings: NodeSettings) -> ExternalNode:
        return ExternalNode(url, management_url, address, release, settings)

    return Source("external", f"the running broker at {address} ({URL_VARIABLE})", node)


class ExternalNode:
    """An external broker."""

    def __init__(
        self, url: str, management_url: str | None, address: str, release: str | None, settings: NodeSettings
    ) -> None:
        self.url = url
        self.management_url = management_url
        self.stream_url: str | None = os.environ.get(STREAM_VARIABLE)
        self._address = address
        self._release = release
        self._config = settings.config

    def start(self) -> None:
        """Check that the broker answers and is of the requested release."""
        if self._config:
            self._refuse("its configuration cannot be changed", f"unset {URL_VARIABLE}")
        try:
            version = release_at(self.url)
        except (RabbitChxError, AMQPError) as error:
            self._refuse(f"it cannot be reached: {error}", f"correct or unset {URL_VARIABLE}")
        if not is_release(version, self._release):
            raise CannotSupply(
                f"the broker at {self._address} ({URL_VARIABLE}): it is {version}, not {self._release}"
            )

    def stop(self) -> None:
        """Leave the broker as it is."""

    def restart(self) -> None:
        """Refuse: an external broker is not restarted."""
        self._refuse(
            "an external broker cannot be restarted",
            f"unset {URL_VARIABLE}, or use restart_app() with {RABBITMQCTL_VARIABLE} set",
        )

    def kill(self) -> None:
        """Refuse: an external broker is not disturbed."""
        self._refuse("an external broker cannot be killed, paused or disconnected", f"unset {URL_VARIABLE}")

    pause = unpause = disconnect = reconnect = kill

    def ctl(self, *arguments: str) -> str:
        """Run the command line in the environment variable for rabbitmqctl."""
        command = shlex.split(os.environ.get(RABBITMQCTL_VARIABLE, ""))
        if not command:
            self._refuse(
                "there is no access to its node",
                f"set {RABBITMQCTL_VARIABLE} to a command line that runs rabbitmqctl there, "
                "such as 'docker exec -u rabbitmq NAME rabbitmqctl'",
            )
        try:
            return run_ctl(command, arguments)
        except OSError as error:
            self._refuse(
                f"{command[0]!r} cannot be run ({error.strerror})", f"correct {RABBITMQCTL_VARIABLE}"
            )

    def logs(self) -> str:
        """Refuse: there is no access to the log."""
        self._refuse("there is no access to its log", f"unset {URL_VARIABLE}")

    def _refuse(self, what: str, hint: str) -> NoReturn:
        raise BrokerUnavailable(f"the broker at {self._address} ({URL_VARIABLE}): {what}; {hint}")


def _parsed(variable: str, parse: Callable[[str], _Url]) -> _Url:
    try:
        return parse(os.environ[variable])
    except InvalidValue as error:
        raise InvalidValue(variable, error.got, error.expected, error.hint) from None
