"""What RabbitMQ's management HTTP API tells of exchanges, bindings, queues and policies. It reads, and changes nothing.

    management = Management("http://user:password@host:15672")
    management.overview().release
    management.bindings_from("/", "orders")

The user needs the tag ``management`` and any permission in the virtual host. Passwords appear in no text. Of a
queue this API knows the arguments at once, but the policy only from the next statistics on (five seconds): the
policies themselves are always up to date. Every call is one request or one per page, each with the timeout.
"""

from __future__ import annotations

import base64
import json
import ssl
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from rabbit_chx.errors import BrokerUnavailable, InvalidValue
from rabbit_chx.ring import ToExchange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rabbit_chx.ring import Destination

__all__ = ["Bound", "Exchange", "Management", "Overview", "Policy", "Queue"]

_PRODUCT: Final = "RabbitMQ"
_PAGE_SIZE: Final = 500  # the API's own maximum
_TURN_ON: Final = (
    "`rabbitmq-plugins enable rabbitmq_management` on the node turns it on, by default at port 15672"
)


@dataclass(frozen=True, slots=True)
class Overview:
    """What answers."""

    product: str
    release: str
    """Of the node that answers; a cluster may run several while it is upgraded."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange as it was declared, and the policy that applies to it."""

    name: str
    type: str
    internal: bool
    arguments: Mapping[str, Any] = field(default_factory=dict)
    policy: str | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """A binding, with the exchange that it leads away from."""

    source: str
    destination: Destination
    key: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue as it was declared, and the definition of the policy that applied when statistics were last taken."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    effective_policy: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy; of those whose pattern matches a name, the one of the highest priority applies to it."""

    name: str
    pattern: str
    apply_to: str
    definition: Mapping[str, Any] = field(default_factory=dict)


class _NoRedirects(HTTPRedirectHandler):
    """urllib would send the password along to wherever it is told to go."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Take the answer for the error that it is."""


class Management:
    """A reader of one broker's management API.

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
        self._base, own = _split(url)
        self._own = own
        self._credentials = credentials
        self._timeout = timeout
        self._opener = build_opener(_NoRedirects, HTTPSHandler(context=tls or ssl.create_default_context()))

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
                f"the server at {self._base} calls itself {product!r}: what is true of RabbitMQ's exchanges need not be of its"
            )
        return Overview(product, str(found.get("rabbitmq_version", "")))

    def feature_flags(self) -> dict[str, bool]:
        """Every feature flag and whether it is enabled; old releases (3.10) let only administrators ask."""
        return {flag["name"]: flag["state"] == "enabled" for flag in self._get(["feature-flags"])}

    def exchange(self, vhost: str, name: str) -> Exchange:
        """One exchange; the default exchange is called ``""``."""
        return _exchange(self._get(["exchanges", vhost, name or "amq.default"]))

    def exchanges(self, vhost: str) -> list[Exchange]:
        """All exchanges of a virtual host."""
        return [_exchange(row) for row in self._pages(["exchanges", vhost])]

    def bindings_from(self, vhost: str, source: str) -> list[Bound]:
        """The bindings that lead away from one exchange, in no order that means anything."""
        return [
            _bound(row)
            for row in self._get(["exchanges", vhost, source or "amq.default", "bindings", "source"])
        ]

    def bindings(self, vhost: str) -> list[Bound]:
        """All bindings of a virtual host, in one answer: this list has no pages."""
        return [_bound(row) for row in self._get(["bindings", vhost])]

    def queue(self, vhost: str, name: str) -> Queue:
        """One queue."""
        row = self._get(["queues", vhost, name], columns="name,arguments,effective_policy_definition")
        # An Erlang list without elements is [] in JSON, whatever it would hold.
        return Queue(row["name"], row.get("arguments") or {}, row.get("effective_policy_definition") or {})

    def queue_names(self, vhost: str, pattern: str) -> list[str]:
        """The names of the queues that a regular expression of Erlang's finds."""
        options = {"name": pattern, "use_regex": "true", "columns": "name"}
        return [row["name"] for row in self._pages(["queues", vhost], **options)]

    def policies(self, vhost: str) -> list[Policy]:
        """All policies of a virtual host."""
        return [
            Policy(row["name"], row["pattern"], row["apply-to"], row["definition"] or {})
            for row in self._get(["policies", vhost])
        ]

    # -- requests ----------------------------------------------------------------------------------

    def _pages(self, path: list[str], **options: str) -> Iterator[Any]:
        page = pages = 1
        while page <= pages:
            found = self._get(path, page=str(page), page_size=str(_PAGE_SIZE), **options)
            yield from found["items"]
            page, pages = page + 1, found["page_count"]

    def _get(self, path: list[str], **options: str) -> Any:
        """The answer to one request; the path comes in its parts, since names may hold slashes."""
        query = f"?{urlencode(options)}" if options else ""
        url = f"{self._base}/api/{'/'.join(quote(part, safe='') for part in path)}{query}"
        user, password = self._own or (self._credentials() if self._credentials else ("guest", "guest"))
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        request = Request(url, headers={"Authorization": f"Basic {token}", "Accept": "application/json"})  # noqa: S310 - the scheme was checked
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                return json.load(answer)
        except HTTPError as error:
            with error:
                raise self._refused(error, path, user) from None
        except ValueError:
            raise self._no_api() from None
        except HTTPException as error:
            raise BrokerUnavailable(
                f"what answers at {self._base} does not speak HTTP ({type(error).__name__}): is it the port of AMQP?"
            ) from None
        except OSError as error:
            raise self._unreachable(error) from None

    def _refused(self, error: HTTPError, path: list[str], user: str) -> BrokerUnavailable:
        reason = _reason(error)
        if error.code == 404 and len(path) > 1 and reason:
            kind, vhost, *name = path
            what = f"{kind.removesuffix('s')} {name[0]!r} in virtual host" if name else "virtual host"
            return BrokerUnavailable(f"the broker at {self._base} has no {what} {vhost!r}")
        if error.code == 404:
            return self._no_api()
        if error.code in {401, 403} and reason.startswith(("Not ", "User not", "Access")):
            return BrokerUnavailable(
                f"the user {user!r} may not read {path[0]} at {self._base} ({reason}): it needs the tag "
                "management (`rabbitmqctl set_user_tags`) and a permission in the virtual host"
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
            words = getattr(reason, "verify_message", "") or reason.reason or str(reason)
            return BrokerUnavailable(f"TLS with the management API at {self._base} fails: {words}")
        words = (reason.strerror if isinstance(reason, OSError) else None) or str(reason)
        return BrokerUnavailable(f"no management API answers at {self._base} ({words}): {_TURN_ON}")


def _split(url: str) -> tuple[str, tuple[str, str] | None]:
    """The base of all addresses, and user and password, if they are there."""
    problem = InvalidValue(
        "the management URL",
        got="a text that is none",  # never the text itself: it may hold a password
        allowed="http://host:15672 or https://user:password@host:15671",
        way_out="write special characters of user and password as %XX",
    )
    try:
        parts = urlsplit(url)
        valid = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        raise problem from None
    # An unescaped password ends where one of / ? # stands in it; what follows holds the @ of the host.
    if not valid or "@" in parts.path or parts.query or parts.fragment:
        raise problem
    host = parts.netloc.rpartition("@")[2]
    own = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
    return f"{parts.scheme}://{host}{parts.path.rstrip('/').removesuffix('/api')}", own


def _reason(error: HTTPError) -> str:
    """The API's own words, if they are the API's."""
    try:
        found = json.load(error)
        return str(found["reason"]) if isinstance(found, dict) and "reason" in found else ""
    except (ValueError, OSError, HTTPException):
        return ""


def _exchange(row: Any) -> Exchange:
    return Exchange(
        row["name"], row["type"], row["internal"], row.get("arguments") or {}, row.get("policy") or None
    )


def _bound(row: Any) -> Bound:
    name = row["destination"]
    destination = name if row["destination_type"] == "queue" else ToExchange(name)
    return Bound(row["source"], destination, row["routing_key"], row.get("arguments") or {})
