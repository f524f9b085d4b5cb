"""A user of the broker, made over the HTTP API, where a request takes milliseconds and `rabbitmqctl` a second."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from rabbit_chx.broker.management import Management
from rabbit_chx.testing import Broker
from tests.canary import canary

PASSWORD = canary("user")


@dataclass(frozen=True)
class User:
    """A user, its virtual host, and the ways in which it reaches the broker."""

    broker: Broker
    name: str
    password: str
    vhost: str

    @property
    def url(self) -> str:
        parts = urlsplit(self.broker.url)
        login, vhost = f"{self.name}:{quote(self.password, safe='')}", quote(self.vhost, safe="")
        return f"amqp://{login}@{parts.hostname}:{parts.port}/{vhost}"

    @property
    def management(self) -> Management:
        return Management(self.broker.management_url, credentials=lambda: (self.name, self.password))

    def grant(self, configure: str, write: str, read: str) -> None:
        """Replace the user's permissions."""
        patterns = {"configure": configure, "write": write, "read": read}
        _admin(self.broker)._request("PUT", ["permissions", self.vhost, self.name], body=patterns)


@contextmanager
def a_user(broker, configure, write, read, *, vhost="/", tags="", name="", password=PASSWORD):
    """A user with these permissions, for the length of the block."""
    user = User(broker, name or f"u{uuid.uuid4().hex[:8]}", password, vhost)
    _admin(broker)._request("PUT", ["users", user.name], body={"password": password, "tags": tags})
    try:
        user.grant(configure, write, read)
        yield user
    finally:
        _admin(broker)._request("DELETE", ["users", user.name])


def _admin(broker: Broker) -> Management:
    return Management.of(broker.url, broker.management_url)
