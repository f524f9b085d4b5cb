"""What can go wrong with a connection that holds a secret: each scenario is called with a site, and raises an error.

A scenario prints its objects, and its error has the words beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from rabbit_chx.broker import Management, apply, apply_async
from rabbit_chx.broker.amqp import parameters_of
from rabbit_chx.broker.tls import context
from rabbit_chx.publishing import Publisher, Timeouts
from rabbit_chx.topology import Plan
from rabbit_chx.topology.model import Queue
from rabbit_chx.topology.planning.steps import DeclareQueue
from tests.faults.proxy import Proxy
from tests.patience import wait_until
from tests.tls import Authority, Listener

PLAN = Plan("/", tuple(DeclareQueue(Queue(f"secrets.{number}", "classic")) for number in range(3)))


@dataclass(frozen=True)
class Site:
    """A broker, a user of it, and right and wrong secrets."""

    broker: Any
    user: str
    password: str
    wrong: str
    key: str
    """The passphrase of the file locked.key."""
    body: str
    """Part of each message."""
    authority: Authority
    listener: Listener
    kept: Path
    """A folder for what may hold secrets: password files."""

    def amqp(
        self, password: str | None = None, *, vhost: str = "/", where: str = "", scheme: str = "amqp"
    ) -> str:
        """A URL, by default with the right password."""
        secret = quote(self.password if password is None else password, safe="")
        where = where or self.address
        return f"{scheme}://{self.user}:{secret}@{where}/{quote(vhost, safe='')}"

    def http(
        self, password: str | None = None, *, path: str = "", where: str = "", scheme: str = "http"
    ) -> str:
        """The same for the management API."""
        where = where or urlsplit(self.broker.management_url).netloc
        return self.amqp(password, where=where, scheme=scheme).rpartition("/")[0] + path

    def stream(
        self,
        password: str | None = None,
        *,
        vhost: str = "/",
        where: str = "",
        scheme: str = "rabbitmq-stream",
    ) -> str:
        """The same for the stream protocol."""
        where = where or urlsplit(self.broker.stream_url).netloc.rpartition("@")[2]
        return self.amqp(password, vhost=vhost, where=where, scheme=scheme)

    @property
    def anonymous(self) -> str:
        """A URL with the user and no password."""
        return f"amqp://{self.user}@{self.address}"

    @property
    def address(self) -> str:
        """Host and port of AMQP."""
        return urlsplit(self.broker.url).netloc.rpartition("@")[2]

    @property
    def tls(self) -> str:
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
        yield f"amqp://\uff0f:{self.wrong}@host"  # Python's parser quotes this one in its error
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
        """A publisher with short timeouts, except for the first connection."""
        timeouts = Timeouts(**({"connect": 20.0, "reconnect": 0.5, "retry": 0.1} | (timeouts or {})))
        made = Publisher(url, exchange, timeouts=timeouts, **options)
        show(made)
        return made

    def publish(
        self, publisher: Publisher, key: str = "k", rows: int = 20, *, on_failure: Any = None
    ) -> None:
        """Publish messages with a secret in body and headers, and show the publisher afterwards."""
        with publisher:
            bulk = publisher.bulk(on_failure=on_failure)
            try:
                bulk.add_many([self.body] * rows, key, headers={"token": self.body})
                bulk.flush(5)
            finally:
                show(publisher, publisher.totals, bulk, bulk.failures, publisher.error)


Scenario = Callable[[Site], object]
Scenarios = dict[str, tuple[Scenario, str]]


@contextmanager
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and sends nothing."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def show(*objects: object) -> None:
    """Print the texts of objects."""
    for each in objects:
        print(repr(each), str(each), f"{each}")


def _each(urls: Iterator[str], call: Callable[[str], object]) -> None:
    """Call with each URL, and raise all the errors; a call that raises none fails."""
    errors = []
    for url in urls:
        with contextlib.suppress(ConnectionError):
            try:
                call(url)
            except Exception as error:  # noqa: BLE001 - the caller looks at it
                errors.append(error)
            else:
                raise AssertionError("a malformed URL was accepted")
    raise ExceptionGroup("malformed", errors)


_SCHEMES = {
    Site.amqp: ("amqp", "amqps"),
    Site.http: ("http", "https"),
    Site.stream: ("rabbitmq-stream", "rabbitmq-stream+tls"),
}


def common(
    connect: Callable[..., object], parse: Callable[..., object], url: Callable[..., str]
) -> Scenarios:
    """What can go wrong for every client: `connect(site, url)` connects, and `url` is Site.amqp, Site.http or Site.stream."""
    scheme, secure = _SCHEMES[url]

    def nobody(site: Site) -> None:
        with silent() as where:
            connect(site, url(site, where=where))

    def another_authority(site: Site) -> None:
        where = f"127.0.0.1:{site.listener.port}"
        connect(site, url(site, where=where, scheme=secure), tls=site.context(ca="other-ca.pem"))

    return {
        "a wrong password": (lambda site: connect(site, url(site, site.wrong)), "rejected the user"),
        "no broker": (
            lambda site: connect(site, url(site, where="127.0.0.1:1")),
            "Connection refused|no broker answers",
        ),
        "a host that sends nothing": (nobody, "attempt|timed out|sent nothing|did not answer"),
        "malformed URLs": (
            lambda site: _each((each.replace("amqp", scheme, 1) for each in site.malformed()), parse),
            "malformed",
        ),
        "another authority": (another_authority, "certificate"),
    }


# -- a publisher ---------------------------------------------------------------------------------------------


def publish(site: Site, url: str, **options: Any) -> None:
    site.publish(site.publisher(url, timeouts={"connect": 3.0}, **options), "nowhere")


def held_back(site: Site, *, cut: bool) -> None:
    """Nothing that the publisher sends arrives; then the connection is cut, or a flush times out."""
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(Proxy(site.broker.url))
        publisher = stack.enter_context(site.publisher(site.amqp(where=f"127.0.0.1:{proxy.port}")))
        stack.callback(proxy.release)
        proxy.hold()
        bulk = publisher.bulk()
        bulk.add_many([site.body] * 20, "k")
        wait_until(lambda: publisher.totals.bytes, "they are written, and can no longer be withdrawn")
        if cut:
            proxy.__exit__()
        show(publisher)
        bulk.flush(None if cut else 0.1)


def reported_failures(site: Site) -> None:
    failures: list[Any] = []
    site.publish(site.publisher(site.amqp()), "nowhere", on_failure=failures.append)
    assert len(failures) == 20
    show(*failures)
    raise RuntimeError(f"reported failures: {failures[0]}")


def errors_of_the_caller(site: Site) -> None:
    with site.publisher(site.amqp()) as publisher, publisher.bulk() as bulk:
        bulk.add(site.body, "nowhere")
        raise RuntimeError("the caller's own")


def with_credentials(site: Site, credentials: Any) -> None:
    site.publisher(site.amqp(""), credentials=credentials).open()


PUBLISHER: Scenarios = common(publish, Publisher, Site.amqp) | {
    "an unroutable message": (lambda site: publish(site, site.amqp()), "312 NO_ROUTE"),
    "a token that has expired": (
        lambda site: with_credentials(site, lambda: (site.user, site.wrong)), "rejected the user name or password"
    ),
    "a wrong password file": (
        lambda site: with_credentials(site, site.file("wrong", f"{site.wrong}\n")), "rejected the user name or password"
    ),
    "a password file of two lines": (
        lambda site: with_credentials(site, site.file("lines", f"{site.wrong}\n{site.wrong}\n")), "several lines"
    ),
    "no such host": (lambda site: publish(site, site.amqp(where="no.invalid")), "no broker answers"),
    "invalid credentials": (lambda site: Publisher(site.amqp(), credentials=site.wrong), "got 'str'"),
    "a wrong passphrase": (lambda site: site.context(key=site.wrong), "look at the passphrase"),
    "a locked key that opens": (lambda site: publish(site, site.tls, tls=site.context()), "NO_ROUTE"),
    "cut in the middle": (partial(held_back, cut=True), "not confirmed"),
    "not confirmed in time": (partial(held_back, cut=False), "unconfirmed after 0.1 seconds"),
    "on_failure": (reported_failures, "reported failures"),
    "an error of the caller": (errors_of_the_caller, "the caller's own"),
}  # fmt: skip


# -- plans ---------------------------------------------------------------------------------------------------


def with_pika(url: str, **options: Any) -> object:
    return apply(url, PLAN, **options)


def with_aio_pika(url: str, **options: Any) -> object:
    return asyncio.run(apply_async(url, PLAN, **options))


def appliers(carry_out: Callable[..., object]) -> Scenarios:
    """The scenarios of one of the two."""
    return common(lambda _, url, **options: carry_out(url, **options), carry_out, Site.amqp) | {
        "no such virtual host": (lambda site: carry_out(site.amqp(vhost="no")), "no such virtual host"),
        "no permission": (lambda site: carry_out(site.amqp()), "ACCESS_REFUSED|permission"),
        "a management API that refuses": (
            lambda site: carry_out(site.amqp(), management=Management(site.http(site.wrong))),
            "rejected|permission",
        ),
        "a dry run, which succeeds": (
            lambda site: show(carry_out(site.tls, tls=site.context(), dry_run=True), PLAN),
            "",
        ),
    }


# -- the management API --------------------------------------------------------------------------------------


def management(site: Site, url: str, *, timeout: float = 10.0, **options: Any) -> Management:
    made = Management(url, timeout=timeout, **options)
    show(made)
    return made


def overview(site: Site, url: str, **options: Any) -> object:
    return management(site, url, **options).overview()


def no_answer(site: Site) -> None:
    with silent() as where:
        management(site, site.http(where=where), timeout=0.5).overview()


def two_passwords(site: Site) -> None:
    """The password of the URL is used; the other is no less secret."""
    management(site, site.http(site.wrong), credentials=lambda: (site.user, site.password)).whoami()


READER: Scenarios = common(overview, Management, Site.http) | {
    "a host that sends nothing": (no_answer, "did not answer"),
    "two passwords": (two_passwords, "rejected the user"),
    "404": (lambda site: overview(site, site.http(path="/nothing/here")), "not a management API|answered 40"),
    "the port of AMQP": (
        lambda site: overview(site, site.http(where=site.address)), "AMQP port"
    ),
    "a port without TLS": (lambda site: overview(site, site.http(scheme="https")), "TLS"),
    "pika's parameters": (lambda site: show(parameters_of(site.amqp())), ""),
}  # fmt: skip
