"""What RabbitMQ's management HTTP API tells of a virtual host. It reads, and changes nothing but policies.

    management = Management("http://user:password@host:15672")
    management.overview().release
    management.bindings_from("/", "orders")

The user needs the tag ``management`` and any permission in the virtual host, and ``policymaker`` to change policies.
Passwords appear in no text. Of a queue this API knows the arguments at once, but the policy and the messages only from
the next statistics on (five seconds): the policies themselves are always up to date. Every call is one request or
one per page, each with the timeout.
"""

from __future__ import annotations

import base64
import json
import shlex
import ssl
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final, get_args
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from rabbit_chx.broker.credentials import Credentials, login
from rabbit_chx.broker.permissions import Needs
from rabbit_chx.broker.reasons import why_no_tls
from rabbit_chx.broker.tls import warn_if_unchecked
from rabbit_chx.errors import BrokerUnavailable, InvalidValue
from rabbit_chx.releases import Release, Store
from rabbit_chx.ring import ToExchange
from rabbit_chx.topology.model import Binding, Exchange, Policy, Queue, QueueType
from rabbit_chx.urls import BrokerUrl, ManagementUrl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Binding", "Exchange", "Management", "Overview", "Policy", "Queue", "User"]

_PRODUCT: Final = "RabbitMQ"
_PAGE_SIZE: Final = 500  # the API's own maximum
_QUEUE_COLUMNS: Final = "name,type,durable,auto_delete,exclusive,arguments,effective_policy_definition"
_SINGULAR: Final = {"exchanges": "exchange", "queues": "queue", "policies": "policy"}
_TAGS: Final = {"monitor": "monitoring", "administrator": "administrator", "policymaker": "policymaker"}
_TURN_ON: Final = (
    "`rabbitmq-plugins enable rabbitmq_management` on the node turns it on, by default at port 15672"
)


@dataclass(frozen=True, slots=True)
class Overview:
    """What answers."""

    product: str
    release: str
    """Of the node that answers; a cluster may run several while it is upgraded."""
    exchange_types: frozenset[str] = frozenset()
    """The types that can be declared."""
    cluster: str = ""
    """The name of the cluster, by default that of its first node."""


@dataclass(frozen=True, slots=True)
class User:
    """Who asks."""

    name: str
    tags: frozenset[str]


class _NoRedirects(HTTPRedirectHandler):
    """urllib would send the password along to wherever it is told to go."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Take the answer for the error that it is."""


class Management:
    """One broker's management API.

    Args:
        url: of the API, with or without user and password: ``http://host:15672``, also below a path.
        credentials: called on each request for user and password, where the URL has none; otherwise guest.
        tls: for https; by default certificate and host name are checked.
        timeout: seconds for a request.
    """

    def __init__(
        self,
        url: str,
        *,
        credentials: Callable[[], tuple[str, str]] | None = None,
        tls: ssl.SSLContext | None = None,
        timeout: float = 5.0,
    ) -> None:
        parts = ManagementUrl.parse(url)
        self._base = parts.base
        self._own = (parts.user, parts.password) if parts.user else None
        self._credentials = credentials
        self._timeout = timeout
        if self._base.startswith("https:"):
            warn_if_unchecked(tls, self._base)
        self._opener = build_opener(_NoRedirects, HTTPSHandler(context=tls or ssl.create_default_context()))

    @classmethod
    def of(
        cls,
        broker: str | BrokerUrl,
        url: str | None = None,
        *,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> Management:
        """The management API of a broker, by default on its own host, with the user and password of the broker.

        Args:
            broker: its AMQP URL.
            url: of the API, whose own user and password come first.
            credentials: where the password is not in the AMQP URL.
            tls: as for a connection to the broker.
        """
        broker = BrokerUrl.parse(broker)
        return cls(
            url or broker.management_url,
            credentials=partial(_login, credentials, broker),
            tls=tls,
        )

    def __repr__(self) -> str:
        return f"<Management of {self._base}>"

    # -- what there is -----------------------------------------------------------------------------

    def overview(self) -> Overview:
        """Product and release, after checking that it is RabbitMQ at all."""
        found = self._get(["overview"])
        if not isinstance(found, dict):
            raise self._no_api()
        product = "LavinMQ" if "lavinmq_version" in found else str(found.get("product_name", ""))
        if product != _PRODUCT:
            raise BrokerUnavailable(
                f"the server at {self._base} calls itself {product!r}: its x-consistent-hash, if it has one, is another "
                "algorithm under the same name, and what is true of RabbitMQ's exchanges need not be of its"
            )
        types = frozenset(
            row["name"] for row in found.get("exchange_types") or () if row.get("enabled", True)
        )
        return Overview(
            product, str(found.get("rabbitmq_version", "")), types, str(found.get("cluster_name", ""))
        )

    def whoami(self) -> User:
        """The user who asks, and the tags."""
        row = self._get(["whoami"])
        tags = row["tags"] if isinstance(row["tags"], list) else row["tags"].split(",")  # up to 3.8 a text
        return User(row["name"], frozenset(tags))

    def nodes(self) -> dict[str, bool]:
        """The nodes of the cluster and whether each runs; this needs the tag ``monitoring``."""
        return {row["name"]: row["running"] for row in self._get(["nodes"], columns="name,running")}

    def store(self, release: str) -> Store | None:
        """Where the bindings are kept, None if it cannot be read.

        It makes a difference for some releases only: the feature flag came with 3.13, and from 4.3 on there is one store.
        """
        possible = [store for store in Store if _may_be_on(release, store)]
        if len(possible) == 1:
            return possible[0]
        try:
            return Store.KHEPRI if self.feature_flags().get("khepri_db") else Store.MNESIA
        except BrokerUnavailable:
            return None

    def feature_flags(self) -> dict[str, bool]:
        """Every feature flag and whether it is enabled; old releases (3.10) let only administrators ask."""
        return {flag["name"]: flag["state"] == "enabled" for flag in self._get(["feature-flags"])}

    def exchange(self, vhost: str, name: str) -> Exchange:
        """One exchange; the default exchange is called ``""``."""
        return _exchange(self._get(["exchanges", vhost, name or "amq.default"]))

    def exchanges(self, vhost: str) -> list[Exchange]:
        """All exchanges of a virtual host."""
        return [_exchange(row) for row in self._pages(["exchanges", vhost])]

    def bindings_from(self, vhost: str, source: str) -> list[Binding]:
        """The bindings that lead away from one exchange, in no order that means anything."""
        return [
            _bound(row)
            for row in self._get(["exchanges", vhost, source or "amq.default", "bindings", "source"])
        ]

    def bindings(self, vhost: str) -> list[Binding]:
        """All bindings of a virtual host, in one answer: this list has no pages."""
        return [_bound(row) for row in self._get(["bindings", vhost])]

    def queue(self, vhost: str, name: str) -> Queue:
        """One queue."""
        return _queue(self._get(["queues", vhost, name], columns=_QUEUE_COLUMNS))

    def queues(self, vhost: str) -> list[tuple[Queue, int | None]]:
        """All queues of a virtual host, each with its number of messages of some seconds ago, None for a stream.

        Queues of other types than classic, quorum and stream (those of some MQTT subscribers) are left out, and
        no policy is shown.
        """
        # Totals are kept without the statistics, which some brokers have switched off and which are slow to list.
        rows = self._pages(["queues", vhost], disable_stats="true", enable_queue_totals="true")
        known = get_args(QueueType)
        return [(_queue(row), row.get("messages")) for row in rows if row.get("type", "classic") in known]

    def queue_names(self, vhost: str, pattern: str) -> list[str]:
        """The names of the queues that a regular expression of Erlang's finds."""
        options = {"name": pattern, "use_regex": "true", "columns": "name"}
        return [row["name"] for row in self._pages(["queues", vhost], **options)]

    def policies(self, vhost: str) -> list[Policy]:
        """All policies of a virtual host."""
        return [
            Policy(row["name"], row["pattern"], row["apply-to"], row["definition"] or {}, row["priority"])
            for row in self._get(["policies", vhost])
        ]

    # -- what can be changed -----------------------------------------------------------------------

    def put_policy(self, vhost: str, policy: Policy) -> None:
        """Make a policy, or replace the one of that name."""
        body = {
            "pattern": policy.pattern,
            "apply-to": policy.apply_to,
            "definition": dict(policy.definition),
            "priority": policy.priority,
        }
        self._request("PUT", ["policies", vhost, policy.name], body=body)

    def delete_policy(self, vhost: str, name: str) -> None:
        """Take a policy away; one that is not there is an error."""
        self._request("DELETE", ["policies", vhost, name])

    # -- requests ----------------------------------------------------------------------------------

    def _pages(self, path: list[str], **options: str) -> Iterator[Any]:
        page = pages = 1
        while page <= pages:
            found = self._get(path, page=str(page), page_size=str(_PAGE_SIZE), **options)
            yield from found["items"]
            page, pages = page + 1, found["page_count"]

    def _get(self, path: list[str], **options: str) -> Any:
        return self._request("GET", path, **options)

    def _request(self, method: str, path: list[str], *, body: Any = None, **options: str) -> Any:
        """The answer to one request; the path comes in its parts, since names may hold slashes."""
        query = f"?{urlencode(options)}" if options else ""
        url = f"{self._base}/api/{'/'.join(quote(part, safe='') for part in path)}{query}"
        user, password = self._own or (self._credentials() if self._credentials else ("guest", "guest"))
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        request = Request(  # noqa: S310 - the scheme was checked
            url,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Basic {token}",
                "Accept": "application/json",
                "Content-Type": "application/json",
            },
        )
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                return json.load(answer) if method == "GET" else None
        except HTTPError as error:
            with error:
                raise self._refused(error, method, path, user) from None
        except ValueError:
            raise self._no_api() from None
        except HTTPException as error:
            raise BrokerUnavailable(
                f"what answers at {self._base} does not speak HTTP ({type(error).__name__}): is it the port of AMQP?"
            ) from None
        except OSError as error:
            raise self._unreachable(error) from None

    def _refused(self, error: HTTPError, method: str, path: list[str], user: str) -> BrokerUnavailable:
        reason = _reason(error)
        verb = "read" if method == "GET" else "change"
        unseen = error.code == 404 or "virtual host" in reason
        if unseen and len(path) > 1 and reason:
            kind, vhost, *name = path
            if error.code == 404 and name and kind in _SINGULAR:
                missing = f"{_SINGULAR[kind]} {name[0]!r} in virtual host {vhost!r}"
            else:
                way_in = f"`{Needs().line(vhost, user)}` lets it look"
                missing = f"virtual host {vhost!r}, or none for the user {user!r}: {way_in}"
            return BrokerUnavailable(f"the broker at {self._base} has no {missing}")
        if error.code == 404:
            return self._no_api()
        if error.code in {401, 403} and (tag := _missing_tag(reason, method)):
            return BrokerUnavailable(
                f"the user {user!r} may not {verb} {path[0]} at {self._base} ({reason}): it needs the tag "
                f"{tag} (`rabbitmqctl set_user_tags {shlex.quote(user)} {tag}`) and a permission in the virtual host"
            )
        if error.code in {401, 403}:
            return BrokerUnavailable(f"the broker at {self._base} refuses the user {user!r} or its password")
        return BrokerUnavailable(
            f"the management API at {self._base} answers {error.code} to {path[0]}: {reason or error.reason}"
        )

    def _no_api(self) -> BrokerUnavailable:
        return BrokerUnavailable(f"what answers at {self._base} is no management API: {_TURN_ON}")

    def _unreachable(self, error: OSError) -> BrokerUnavailable:
        reason = error.reason if isinstance(error, URLError) else error
        if isinstance(reason, TimeoutError):
            return BrokerUnavailable(
                f"the management API at {self._base} did not answer in {self._timeout} seconds"
            )
        if isinstance(reason, ssl.SSLError):
            return BrokerUnavailable(str(why_no_tls(reason, f"the management API at {self._base}")))
        if isinstance(reason, ConnectionResetError):
            return BrokerUnavailable(
                f"what answers at {self._base} ends the connection: is it the port of AMQP?"
            )
        words = (reason.strerror if isinstance(reason, OSError) else None) or str(reason)
        return BrokerUnavailable(f"no management API answers at {self._base} ({words}): {_TURN_ON}")


def _login(credentials: Credentials | None, broker: BrokerUrl) -> tuple[str, str]:
    if broker.external:
        raise InvalidValue(
            "user of the management API",
            "auth_mechanism=external",
            "a user and a password: this API accepts no client certificate instead",
            "Write both into the management URL",
        )
    return login(credentials, broker)


def _reason(error: HTTPError) -> str:
    """The API's own words, if they are the API's."""
    try:
        found = json.load(error)
        return str(found["reason"]) if isinstance(found, dict) and "reason" in found else ""
    except (ValueError, OSError, HTTPException):
        return ""


def _missing_tag(reason: str, method: str) -> str:
    """The tag that the API's words ask for, if they ask for any: "Not monitor user", "User not authorised ..."."""
    if not reason.startswith(("Not ", "User not", "Access")):
        return ""
    for word, tag in _TAGS.items():
        if word in reason:
            return tag
    return "management" if method == "GET" else "policymaker"


def _may_be_on(release: str, store: Store) -> bool:
    try:
        Release.parse(release, store=store)
    except InvalidValue:
        return False
    return True


def _exchange(row: Any) -> Exchange:
    return Exchange(
        row["name"],
        row["type"],
        durable=row["durable"],
        auto_delete=row["auto_delete"],
        internal=row["internal"],
        arguments=row["arguments"] or {},
        policy=row.get("policy") or None,
    )


def _queue(row: Any) -> Queue:
    # An Erlang list without elements is [] in JSON, whatever it would hold. From 4.0 on a classic queue shows
    # its type among the arguments, too, whether or not it was declared with it.
    arguments = {name: value for name, value in dict(row["arguments"]).items() if name != "x-queue-type"}
    return Queue(
        row["name"],
        row["type"],
        durable=row["durable"],
        auto_delete=row["auto_delete"],
        exclusive=bool(row["exclusive"]),  # null of a type that cannot be exclusive, where no statistics are
        arguments=arguments,
        effective_policy=row.get("effective_policy_definition") or {},
    )


def _bound(row: Any) -> Binding:
    name = row["destination"]
    destination = name if row["destination_type"] == "queue" else ToExchange(name)
    return Binding(row["source"], destination, row["routing_key"], row["arguments"] or {})
