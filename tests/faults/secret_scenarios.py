"""What can go wrong with a connection that holds a secret: each scenario is called with a site, and fails as it says.

A scenario shows the objects that it makes to the site's places; whoever calls it catches its error.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from rabbit_chx.broker.amqp import parameters_of
from rabbit_chx.broker.reading.reader import read
from rabbit_chx.broker.tls import context
from rabbit_chx.publishing import Publisher, Timeouts
from rabbit_chx.topology import Management, Plan, apply, apply_async
from rabbit_chx.topology.model import Queue
from rabbit_chx.topology.planning.steps import DeclareQueue
from tests.faults.load import wait_until
from tests.faults.proxy import Proxy
from tests.faults.secret_places import Places
from tests.tls import Authority, Listener

PLAN = Plan("/", tuple(DeclareQueue(Queue(f"secrets.{number}", "classic")) for number in range(3)))


@dataclass(frozen=True)
class Site:
    """A broker, a user of it, and what it takes to get in or to be sent away."""

    broker: Any
    user: str
    password: str
    wrong: str
    key: str
    """The passphrase of the file locked.key."""
    body: str
    """Stands in each message."""
    authority: Authority
    listener: Listener
    places: Places
    kept: Path
    """A folder for what may hold secrets: password files."""

    def amqp(
        self, password: str | None = None, *, vhost: str = "/", where: str = "", scheme: str = "amqp"
    ) -> str:
        """A URL; with the right password if none is said."""
        secret = quote(self.password if password is None else password, safe="")
        where = where or urlsplit(self.broker.url).netloc.rpartition("@")[2]
        return f"{scheme}://{self.user}:{secret}@{where}/{quote(vhost, safe='')}"

    def http(
        self, password: str | None = None, *, path: str = "", where: str = "", scheme: str = "http"
    ) -> str:
        """The same of the management API."""
        where = where or urlsplit(self.broker.management_url).netloc
        return self.amqp(password, where=where, scheme=scheme).rpartition("/")[0] + path

    @property
    def tls(self) -> str:
        """Where TLS is spoken."""
        return self.amqp(where=f"127.0.0.1:{self.listener.port}", scheme="amqps")

    def context(self, *, ca: str = "ca.pem", key: str | None = None) -> Any:
        """A context with the locked key."""
        folder = self.authority.folder
        return context(
            options=("tlsCaFile", "tlsCertFile"),
            hint="look at the passphrase",
            ca_file=folder / ca,
            cert_file=folder / "client.pem",
            key_file=folder / "locked.key",
            key_password=self.key if key is None else key,
        )

    def file(self, name: str, content: str) -> Path:
        """A password file."""
        path = self.kept / name
        path.write_text(content)
        return path

    def malformed(self) -> Iterator[str]:
        """URLs with a password that is not escaped."""
        whole = self.amqp()
        host = whole.rpartition("@")[2]
        for sign in "/?#@:[% \n":
            yield f"amqp://{self.user}:{self.wrong}{sign}{self.wrong}@{host}:x"
            yield f"amqp://{self.user}:{sign}{self.wrong}@{host}#x"
        yield f"amqp://\uff0f:{self.wrong}@host"  # which Python's parser quotes
        yield from (
            f"amqps://{self.user}:{self.wrong}@host?auth_mechanism=external",
            f"ampq:{self.wrong}",
            self.wrong,
        )

    def publisher(
        self,
        url: str,
        exchange: str = "amq.direct",
        *,
        timeouts: dict[str, float] | None = None,
        **options: Any,
    ) -> Publisher:
        """A publisher that has little patience, except with the first connection."""
        timeouts = Timeouts(**({"connect": 20.0, "reconnect": 0.5, "retry": 0.1} | (timeouts or {})))
        made = Publisher(url, exchange, timeouts=timeouts, **options)
        self.places.show(made)
        return made

    def publish(self, publisher: Publisher, key: str = "k", rows: int = 20) -> None:
        """Some messages with a secret in body and headers, and what the publisher then says of itself."""
        with publisher:
            try:
                publisher.publish_many([self.body] * rows, key, headers={"token": self.body})
                publisher.flush(5)
            finally:
                self.places.show(publisher, publisher.totals, publisher.failures, publisher.error)


Scenario = Callable[[Site], object]


@contextmanager
def silent() -> Iterator[str]:
    """Where somebody takes connections, and says nothing."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def _each(urls: Iterator[str], call: Callable[[str], object]) -> None:
    """Raises all that the calls raise, one of which that raises nothing."""
    errors = []
    for url in urls:
        with contextlib.suppress(ConnectionError):
            try:
                call(url)
            except Exception as error:  # noqa: BLE001 - the caller looks at it
                errors.append(error)
            else:
                raise AssertionError("a malformed URL was taken")
    raise ExceptionGroup("malformed", errors)


# -- a publisher ---------------------------------------------------------------------------------------------


def closed_in_the_middle(site: Site) -> None:
    publisher = site.publisher(site.amqp(), timeouts={"reconnect": 20})
    with publisher:
        site.broker.ctl("close_all_user_connections", site.user, "a test of secrets")
        wait_until(lambda: publisher.totals.connections == 2, "it connects again")
        publisher.publish(site.body, "nowhere")
        publisher.flush()


def gone_in_the_middle(site: Site) -> None:
    parts = urlsplit(site.broker.url)
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(Proxy(parts.hostname, parts.port))
        publisher = stack.enter_context(site.publisher(site.amqp(where=f"127.0.0.1:{proxy.port}")))
        proxy.hold()
        publisher.publish_many([site.body] * 20, "k")
        proxy.__exit__()
        site.places.show(publisher)
        publisher.flush()


def not_confirmed_in_time(site: Site) -> None:
    parts = urlsplit(site.broker.url)
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(Proxy(parts.hostname, parts.port))
        publisher = stack.enter_context(site.publisher(site.amqp(where=f"127.0.0.1:{proxy.port}")))
        stack.callback(proxy.release)
        proxy.hold()
        publisher.publish(site.body, "k")
        publisher.flush(0.1)


def told_of_failures(site: Site) -> None:
    told: list[Any] = []
    publisher = site.publisher(site.amqp(), on_failure=told.append)
    site.publish(publisher, "nowhere")
    assert len(told) == 20
    site.places.show(*told)
    raise RuntimeError(f"told of failures: {told[0]}")


def errors_of_the_caller(site: Site) -> None:
    with site.publisher(site.amqp()) as publisher:
        publisher.publish(site.body, "nowhere")
        raise RuntimeError("the caller's own")


def expired_token(site: Site) -> None:
    site.publisher(site.amqp(""), credentials=lambda: (site.user, site.wrong)).open()


def wrong_password_file(site: Site) -> None:
    site.publisher(site.amqp(""), credentials=site.file("wrong", f"{site.wrong}\n")).open()


def password_file_of_two_lines(site: Site) -> None:
    site.publisher(site.amqp(""), credentials=site.file("lines", f"{site.wrong}\n{site.wrong}\n")).open()


def to_nobody(site: Site) -> None:
    with silent() as where:
        site.publisher(site.amqp(where=where), timeouts={"connect": 0.5}).open()


PUBLISHER: dict[str, tuple[Scenario, str]] = {
    "nowhere to go": (lambda site: site.publish(site.publisher(site.amqp()), "nowhere"), "312 NO_ROUTE"),
    "a wrong password": (lambda site: site.publisher(site.amqp(site.wrong)).open(), "rejected the user name or password"),
    "a token that has expired": (expired_token, "rejected the user name or password"),
    "a wrong password file": (wrong_password_file, "rejected the user name or password"),
    "a password file of two lines": (password_file_of_two_lines, "several lines"),
    "no such virtual host": (lambda site: site.publisher(site.amqp(vhost="no")).open(), "no such virtual host"),
    "no permission": (lambda site: site.publish(site.publisher(site.amqp(), "amq.topic")), "no write permission"),
    "no exchange": (lambda site: site.publish(site.publisher(site.amqp(), "amq.direct.no")), "ACCESS_REFUSED"),
    "no broker": (lambda site: site.publisher(site.amqp(where="127.0.0.1:1"), timeouts={"connect": 0.5}).open(), "Connection refused"),
    "no such host": (lambda site: site.publisher(site.amqp(where="no.invalid"), timeouts={"connect": 0.5}).open(), "no broker answers"),
    "a host that keeps silent": (to_nobody, "attempt"),
    "malformed URLs": (lambda site: _each(site.malformed(), Publisher), "malformed"),
    "credentials of no kind": (lambda site: Publisher(site.amqp(), credentials=site.wrong), "got 'str'"),
    "another authority": (
        lambda site: site.publisher(site.tls, tls=site.context(ca="other-ca.pem")).open(),
        "certificate",
    ),
    "a wrong passphrase": (lambda site: site.context(key=site.wrong), "look at the passphrase"),
    "a locked key that opens": (lambda site: site.publish(site.publisher(site.tls, tls=site.context()), "no"), "NO_ROUTE"),
    "closed by the broker": (closed_in_the_middle, "NO_ROUTE"),
    "gone in the middle": (gone_in_the_middle, "not confirmed"),
    "not confirmed in time": (not_confirmed_in_time, "unconfirmed after 0.1 seconds"),
    "on_failure": (told_of_failures, "told of failures"),
    "an error of the caller's": (errors_of_the_caller, "the caller's own"),
}  # fmt: skip


# -- plans ---------------------------------------------------------------------------------------------------


def with_pika(url: str, **options: Any) -> object:
    return apply(url, PLAN, **options)


def with_aio_pika(url: str, **options: Any) -> object:
    return asyncio.run(apply_async(url, PLAN, **options))


def appliers(carry_out: Callable[..., object]) -> dict[str, tuple[Scenario, str]]:
    """The scenarios of one of the two."""

    def closed(site: Site) -> None:
        def close(_: object) -> None:
            site.broker.ctl("close_all_user_connections", site.user, "a test of secrets")

        carry_out(site.amqp(), on_step=close)

    def silence(site: Site) -> None:
        with silent() as where:
            carry_out(site.amqp(where=where))

    return {
        "a wrong password": (
            lambda site: carry_out(site.amqp(site.wrong)),
            "rejected the user name or password",
        ),
        "no such virtual host": (lambda site: carry_out(site.amqp(vhost="no")), "no such virtual host"),
        "no permission": (lambda site: carry_out(site.amqp()), "ACCESS_REFUSED|permission"),
        "no broker": (lambda site: carry_out(site.amqp(where="127.0.0.1:1")), "no broker answers"),
        "a host that keeps silent": (silence, "timed out|sent nothing"),
        "malformed URLs": (lambda site: _each(site.malformed(), carry_out), "malformed"),
        "another authority": (
            lambda site: carry_out(site.tls, tls=site.context(ca="other-ca.pem")),
            "certificate",
        ),
        "a management API that refuses": (
            lambda site: carry_out(site.amqp(), management=Management(site.http(site.wrong))),
            "rejected|permission",
        ),
        "a dry run, which succeeds": (
            lambda site: site.places.show(carry_out(site.tls, tls=site.context(), dry_run=True), PLAN),
            "",
        ),
        "closed by the broker": (closed, "closed|permission"),
    }


# -- the management API --------------------------------------------------------------------------------------


def management(site: Site, url: str, **options: Any) -> Management:
    made = Management(url, timeout=0.5, **options)
    site.places.show(made)
    return made


def to_a_silent_api(site: Site) -> None:
    with silent() as where:
        management(site, site.http(where=where)).overview()


def two_passwords(site: Site) -> None:
    """Those in the URL win; the others are no less secret."""
    management(site, site.http(site.wrong), credentials=lambda: (site.user, site.password)).whoami()


READER: dict[str, tuple[Scenario, str]] = {
    "401": (lambda site: management(site, site.http(site.wrong)).overview(), "rejected the user"),
    "401, by a token": (two_passwords, "rejected the user"),
    "a user without the tag": (lambda site: read(management(site, site.http()), "/"), "needs the tag"),
    "404": (lambda site: management(site, site.http(path="/nothing/here")).overview(), "not a management API|answered 40"),
    "no API": (lambda site: management(site, site.http(where="127.0.0.1:1")).overview(), "Connection refused"),
    "the port of AMQP": (
        lambda site: management(site, site.http(where=urlsplit(site.broker.url).netloc.rpartition("@")[2])).overview(),
        "AMQP port",
    ),
    "a timeout": (to_a_silent_api, "did not answer"),
    "another authority": (
        lambda site: management(
            site, site.http(where=f"127.0.0.1:{site.listener.port}", scheme="https"), tls=site.context(ca="other-ca.pem")
        ).overview(),
        "certificate",
    ),
    "TLS where there is none": (lambda site: management(site, site.http(scheme="https")).overview(), "TLS"),
    "malformed URLs": (
        lambda site: _each((url.replace("amqp", "http", 1) for url in site.malformed()), Management),
        "malformed",
    ),
    "what pika is told": (lambda site: site.places.show(parameters_of(site.amqp())), ""),
}  # fmt: skip
