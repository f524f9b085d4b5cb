"""A client of RabbitMQ's management HTTP API. It reads; the only things that it changes are policies.

    management = Management("http://user:password@host:15672")
    management.overview().release
    management.bindings_from("/", "orders")

The user needs the tag ``management`` and a permission in the virtual host, and ``policymaker`` to change policies.
The API shows arguments of a queue at once, but its policy and its messages only with the next statistics (every five
seconds); the list of policies is always current. Every call is one request, or one request a page.
"""

from __future__ import annotations

import json
import math
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.client import HTTPException
from types import MappingProxyType
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

from rabbit_chx.base.advice import Advice
from rabbit_chx.base.urls import BrokerUrl, ManagementUrl
from rabbit_chx.broker import management_rows as rows
from rabbit_chx.broker.credentials import Credentials, login
from rabbit_chx.broker.http import TIMEOUT, Answer, HttpClient, TooLarge, basic_auth
from rabbit_chx.broker.management_errors import no_api, why_answered, why_no_http, why_unanswered
from rabbit_chx.broker.management_rows import ListedQueue, Overview, QueueState, StreamConsumer, User
from rabbit_chx.broker.tls import warn_if_unchecked
from rabbit_chx.errors import BrokerUnavailable, InvalidValue
from rabbit_chx.mirror.releases import Release, Store
from rabbit_chx.topology.model import Binding, Exchange, NodeState, Policy, Queue

_T = TypeVar("_T")

_PRODUCT: Final = "RabbitMQ"
_PAGE_SIZE: Final = 500  # the API's own maximum
_MOST_PAGES: Final = 400
_MOST_READINGS: Final = 4
_UNCHANGED: Final = 304
_BAD_REQUEST: Final = 400
_HEADERS: Final = {"Accept": "application/json", "Content-Type": "application/json"}
_SILENT_AFTER: Final = 8.0
"""Seconds for the nodes of the cluster to answer each other; they need milliseconds, or 5 s if one has just stopped (4.0)."""
_ANSWERS_ALONE_IN: Final = 2.0
"""Seconds for a node to answer what it knows itself."""


class Management:
    """The management API of one broker.

    Args:
        url: ``http://host:15672``, with or without user and password, also below a path.
        timeout: seconds for a whole request, for which the API may ask all nodes about thousands of queues.
        credentials: called on each request for user and password, where the URL has none; by default guest.
        tls: for https; by default the certificate and the host name are verified.
        proxy: an ``http://`` URL; the environment variable ``http_proxy`` is not read.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = TIMEOUT,
        credentials: Callable[[], tuple[str, str]] | None = None,
        tls: ssl.SSLContext | None = None,
        proxy: str | None = None,
    ) -> None:
        parts = ManagementUrl.parse(url)
        self._base = parts.base
        self._own = (parts.user, parts.password) if parts.user else None
        self._answered = False
        self._credentials = credentials
        self._timeout = timeout
        self._http = HttpClient(parts, tls=tls, proxy=proxy)
        self.requests: int = 0
        """Requests sent so far."""
        if parts.tls:
            warn_if_unchecked(tls, self._base)

    @classmethod
    def of(
        cls,
        broker: str | BrokerUrl,
        url: str | None = None,
        *,
        timeout: float = TIMEOUT,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
        proxy: str | None = None,
        insecure: bool = False,
    ) -> Management:
        """Return the management API of a broker, with the user and password of the broker URL.

        Args:
            broker: the AMQP URL.
            url: of the API, by default on the broker's host; its own user and password take precedence.
            timeout: as for `Management`.
            credentials: where the password is not in the AMQP URL.
            tls: as for a connection to the broker.
            proxy: an ``http://`` URL.
            insecure: send the password of an ``amqps`` URL to another host, or over plain HTTP.

        Raises:
            InvalidValue: the password of an ``amqps`` URL would go to another host, or over plain HTTP.
        """
        broker = BrokerUrl.parse(broker)
        url = url or broker.management_url
        if broker.tls and not insecure:
            _check_protected(broker, ManagementUrl.parse(url))
        password = partial(_borrowed, credentials, broker)
        return cls(url, timeout=timeout, credentials=password, tls=tls, proxy=proxy)

    def __repr__(self) -> str:
        return f"<Management of {self._base}>"

    # -- reading -----------------------------------------------------------------------------------

    def overview(self) -> Overview:
        """Product and release, after checking that the server is RabbitMQ."""
        found = self._get(["overview"], rows.overview)
        if found.product != _PRODUCT:
            raise BrokerUnavailable(
                f"the server at {self._base} calls itself {found.product!r}, not RabbitMQ: its x-consistent-hash, if it "
                "has one, is another algorithm under the same name"
            )
        return found

    def whoami(self) -> User:
        """The user of the API, and its tags."""
        return self._get(["whoami"], rows.user)

    def _check_answers(self, timeout: float) -> None:
        """Raise BrokerUnavailable unless this node answers within ``timeout`` seconds what it knows without the others."""
        with self._answer("GET", ["whoami"], timeout=timeout) as answer:
            answer.value()

    def nodes(self) -> dict[str, NodeState]:
        """The nodes of the cluster; this needs the tag ``monitoring``.

        Raises:
            BrokerUnavailable: also if a node is silent and not yet counted as down: until then, most requests wait for it.
        """
        listed = partial(self._list, ["nodes"], rows.node, columns=rows.NODE_COLUMNS)
        deadline = time.monotonic() + self._timeout
        try:
            return dict(listed(timeout=_SILENT_AFTER))
        except BrokerUnavailable as error:
            if not isinstance(error.__context__, TimeoutError):
                raise
        try:
            self._check_answers(_ANSWERS_ALONE_IN)
        except BrokerUnavailable:
            left = deadline - time.monotonic()
            if left <= 0:
                raise
            return dict(listed(timeout=left))  # this node itself is slow
        raise BrokerUnavailable(
            f"a node of the cluster of {self._base} is silent: it has crashed, hangs or is cut off. The other nodes wait for it "
            "until they count it as down, after net_ticktime (60 seconds by default): try again then"
        )

    def _members(self, vhost: str) -> dict[str, tuple[str, ...]]:
        """The nodes of each replicated queue, without the names of other queues."""
        listed = self._pages(["queues", vhost], rows.members, columns="name,type,members")
        return {name: nodes for name, nodes in listed if nodes}

    def store(self, release: str) -> Store | None:
        """The metadata store, None if it cannot be read.

        Only some releases have a choice: the feature flag came with 3.13, and 4.3 removed the other store.
        """
        possible = [store for store in Store if _supports(release, store)]
        if len(possible) < 2:
            return next(iter(possible), None)
        try:
            return Store.KHEPRI if self.feature_flags().get("khepri_db") else Store.MNESIA
        except BrokerUnavailable:
            return None

    def feature_flags(self) -> dict[str, bool]:
        """Every feature flag and whether it is enabled; 3.10 and earlier require the tag ``administrator``."""
        return dict(self._list(["feature-flags"], rows.feature_flag))

    def exchange(self, vhost: str, name: str) -> Exchange:
        """One exchange; the default exchange is called ``""``."""
        return self._get(["exchanges", vhost, name or "amq.default"], rows.exchange)

    def exchanges(self, vhost: str) -> list[Exchange]:
        """All exchanges of a virtual host."""
        return self._pages(["exchanges", vhost], rows.exchange)

    def bindings_from(self, vhost: str, source: str) -> list[Binding]:
        """The bindings from one exchange, in no defined order."""
        return self._list(["exchanges", vhost, source or "amq.default", "bindings", "source"], rows.binding)

    def bindings(self, vhost: str) -> list[Binding]:
        """All bindings of a virtual host, in one answer: the API has no pages of bindings."""
        return self._list(["bindings", vhost], rows.binding, columns=rows.BINDING_COLUMNS)

    def queue(self, vhost: str, name: str) -> Queue:
        """One queue."""
        return self._get(["queues", vhost, name], rows.queue, columns=rows.QUEUE_COLUMNS)

    def queues(self, vhost: str, *, consumers: bool = False) -> list[ListedQueue]:
        """All queues of a virtual host, each with its number of messages a few seconds ago, None for a stream.

        Queues of other types than classic, quorum and stream (those of some MQTT subscribers) are left out, and
        policies are not shown. With ``consumers``, their numbers are listed, too.
        """
        # Totals are kept without the statistics, which are slow to list and disabled on some brokers.
        of = {"columns": rows.COUNTED_COLUMNS} if consumers else {"disable_stats": "true"}
        found = self._pages(["queues", vhost], rows.listed_queue, **of, enable_queue_totals="true")
        return [each for each in found if each]

    def _published(self, vhost: str) -> dict[str, int]:
        """The number of messages that each queue of a virtual host has received, as of the last statistics."""
        return dict(self._pages(["queues", vhost], rows.published, columns="name,message_stats.publish"))

    def _queue_states(self, vhost: str, *, now: float) -> list[QueueState]:
        """All queues of a virtual host, each as of the last statistics; ``now`` is the time in seconds since the epoch."""
        state = partial(rows.queue_state, now=now)
        return self._pages(["queues", vhost], state, columns=rows.QUEUE_STATE_COLUMNS)

    def _stream_consumers(self, vhost: str, group: str) -> list[StreamConsumer]:
        """The consumers of a group on streams; a user without the tag ``monitoring`` sees only its own.

        The broker needs the plugin rabbitmq_stream_management.
        """
        path, of_group = ["stream", "consumers", vhost], partial(rows.stream_consumer, group=group)
        return [found for found in self._list(path, of_group) if found]

    def vhosts(self) -> list[str]:
        """The names of the virtual hosts that the user may see."""
        return sorted(self._list(["vhosts"], rows.vhost))

    def _tracing(self, vhost: str) -> bool:
        """Whether messages of a virtual host are traced."""
        # The row of one virtual host needs the tag administrator, this list does not.
        listed = self._list(["vhosts"], lambda row: (row.get("name"), row.get("tracing")))
        return (vhost, True) in listed

    def policies(self, vhost: str) -> list[Policy]:
        """All policies of a virtual host."""
        return self._list(["policies", vhost], rows.policy)

    # -- changing ----------------------------------------------------------------------------------

    def definitions(self) -> dict[str, Any]:
        """All definitions of the broker; this needs the tag ``administrator``."""
        return self._get(["definitions"], dict)

    def _definitions_tag(self, vhost: str, known: str = "") -> str:
        """The ETag of a virtual host's definitions, which changes with them; empty before 4.3.5.

        If the ETag is still ``known``, the broker sends no definitions, so the request costs very little.
        """
        with self._answer("GET", ["definitions", vhost], tag=known, also=_UNCHANGED) as answer:
            return answer.headers.get("ETag") or (known if answer.status == _UNCHANGED else "")

    def put_policy(self, vhost: str, policy: Policy) -> None:
        """Create a policy, or replace the one of that name."""
        body = {
            "pattern": policy.pattern,
            "apply-to": policy.apply_to,
            "definition": dict(policy.definition),
            "priority": policy.priority,
        }
        self._request("PUT", ["policies", vhost, policy.name], body=body)

    def delete_policy(self, vhost: str, name: str) -> None:
        """Delete a policy; a missing one is an error."""
        self._request("DELETE", ["policies", vhost, name])

    # -- requests ----------------------------------------------------------------------------------

    def _pages(self, path: list[str], make: Callable[[Any], _T], **options: str) -> list[_T]:
        """All rows of a list.

        Rows that are deleted or created between two pages move others over the boundary, so that one is skipped or comes
        twice. Then all pages are read again; if the list never rests, the result has each row that was seen.
        """
        found: dict[str, _T] = {}
        for _ in range(_MOST_READINGS):
            listed, is_consistent = self._all_pages(path, make, options)
            if is_consistent:
                return list(listed.values())
            found |= listed
        return list(found.values())

    def _all_pages(
        self, path: list[str], make: Callable[[Any], _T], options: Mapping[str, str]
    ) -> tuple[dict[str, _T], bool]:
        """The rows of all pages by name, and whether the pages belong to the same state of the list."""
        found: dict[str, _T] = {}
        totals = set()
        for page in range(1, _MOST_PAGES + 1):
            paged = {"page": str(page), "page_size": str(_PAGE_SIZE), **options}
            # The last page is gone if its rows have just been deleted.
            with self._answer("GET", path, options=paged, also=_BAD_REQUEST if found else None) as answer:
                whole = answer.value()
                if answer.status == _BAD_REQUEST and whole["error"] == "page_out_of_range":
                    return found, False
                listed = rows.field_of(whole, "items", list)
                found |= {rows.field_of(row, "name", str): make(row) for row in listed}
                totals.add(rows.field_of(whole, "total_count", int, -1))
                # A page may lack rows that have just been deleted, and page_count may be any number.
                if not listed or page >= rows.field_of(whole, "page_count", int):
                    return found, page == 1 or totals == {len(found)}
        raise BrokerUnavailable(
            f"the management API at {self._base} lists {path[0]} on more than {_MOST_PAGES} pages"
        )

    def _get(self, path: list[str], make: Callable[[Any], _T], **options: str) -> _T:
        with self._answer("GET", path, options=options) as answer:
            return make(answer.value())

    def _list(
        self, path: list[str], make: Callable[[Any], _T], *, timeout: float = math.inf, **options: str
    ) -> list[_T]:
        with self._answer("GET", path, options=options, timeout=timeout) as answer:
            return list(map(make, answer.elements()))

    def _request(self, method: str, path: list[str], *, body: Any = None) -> Any:
        with self._answer(method, path, body=body) as answer:
            return answer.value() if method == "GET" else None

    @contextmanager
    def _answer(
        self,
        method: str,
        path: list[str],
        *,
        body: Any = None,
        tag: str = "",
        also: int | None = None,
        timeout: float = math.inf,
        options: Mapping[str, str] = MappingProxyType({}),
    ) -> Iterator[Answer]:
        """The answer to one request, a success or with the status ``also``; the path comes in its parts, since names may hold slashes."""
        timeout = min(timeout, self._timeout)
        address = f"/api/{'/'.join(quote(part, safe='') for part in path)}?{urlencode(options)}".rstrip("?")
        user, password = self._own or (self._credentials() if self._credentials else ("guest", "guest"))
        headers = _HEADERS | basic_auth("Authorization", user, password)
        headers |= {"If-None-Match": tag} if tag else {}
        data = None if body is None else json.dumps(body).encode()
        self.requests += 1
        try:
            with self._http.send(method, address, headers, data, timeout=timeout) as answer:
                self._answered = True
                if not (200 <= answer.status < 300 or answer.status == also):
                    raise why_answered(answer, self._base, method, path, user)
                yield answer
        except TooLarge:
            raise BrokerUnavailable(
                f"the management API at {self._base} sent more data about {path[0]} than any broker would"
            ) from None
        except OSError as error:  # also RemoteDisconnected, as a proxy answers for a broker that is down
            raise why_unanswered(error, self._base, timeout=timeout, answered=self._answered) from None
        except HTTPException as error:
            raise why_no_http(error, self._base) from None
        except rows.WRONG_SHAPE:
            raise no_api(self._base) from None


# -- passwords ---------------------------------------------------------------------------------------


def _borrowed(credentials: Credentials | None, broker: BrokerUrl) -> tuple[str, str]:
    """User and password of the broker, for its management API."""
    if broker.external:
        raise InvalidValue(
            "user of the management API",
            "auth_mechanism=external",
            "a user and a password: this API accepts no client certificate instead",
            "Write both into the management URL",
        )
    return login(credentials, broker)


def _check_protected(broker: BrokerUrl, url: ManagementUrl) -> None:
    """Refuse to send a password that TLS protects to another host, or without TLS."""
    if url.user or (url.tls and url.host == broker.host):
        return
    raise InvalidValue(
        "management URL",
        url.base,
        f"https:// and the host {broker.host}, because it gets the password of an amqps URL",
        f"Write a user and a password into the management URL, or {Advice.SEND_UNPROTECTED}",
    )


def _supports(release: str, store: Store) -> bool:
    try:
        Release.parse(release, store=store)
    except InvalidValue:
        return False
    return True
