"""Going straight to the queues, for as long as the topology is what it was: the lease and the watch.

EXPERIMENTAL. While a publisher goes straight, it holds a lease, an exclusive queue by the name of
``rabbit-chx.lease.<exchange>.<12 hex digits>``, so that whoever is about to change the topology can see it. The
topology is read over HTTP when it opens, every five seconds, when a queue gives a message back, after a reconnect, and in each
``flush``. As soon as a reading differs, fails, or the lease is lost, everything goes through the exchange again,
for good; ``suspect`` names the rows that went straight since the last good reading. A change that is undone
between two readings is not seen.

Consumers see the exchange ``""``, the queue's name as the routing key, and the original key in the header
``x-rabbit-chx-key``; after dead-lettering that is what ``x-death`` tells, too. The user needs the tag ``management`` and what
`needs_of` says.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from typing import TYPE_CHECKING, Final

import pika
from pika.exceptions import AMQPError, ChannelClosedByBroker

from rabbit_chx.broker.claims import LEASE_PREFIX, LOCK
from rabbit_chx.broker.management import Management
from rabbit_chx.broker.permissions import DEFAULT_EXCHANGE, Beginning, Needs
from rabbit_chx.broker.reasons import why_down
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, Unpredictable
from rabbit_chx.publishing import may_publish
from rabbit_chx.publishing.direct import DirectRoute, Facts, Refusal, decide
from rabbit_chx.publishing.direct_account import DirectAccount
from rabbit_chx.ring import ToExchange

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from rabbit_chx.broker.management import Bound, Exchange
    from rabbit_chx.publishing.account import Account
    from rabbit_chx.publishing.attempts import Address
    from rabbit_chx.ring import Ring

__all__ = ["Direct", "direct_for", "read_facts"]

log = logging.getLogger("rabbit_chx.publisher")

POLL_SECONDS: Final = 5.0
_TICK: Final = 0.2


def read_facts(
    management: Management, vhost: str, exchange: str, ring: Callable[[], Ring] | None = None
) -> Facts:
    """Read all that the decision needs; with slots that is the list of all exchanges and bindings."""
    release = management.overview().release
    top = management.exchange(vhost, exchange)
    bindings = management.bindings_from(vhost, exchange)
    slots = _read_slots(management, vhost, {bound.destination for bound in bindings})
    leading = [*bindings, *(bound for _, some in slots.values() for bound in some)]
    queues = sorted({bound.destination for bound in leading if isinstance(bound.destination, str)})
    return Facts(
        release=release,
        store=management.store(release),
        top=top,
        bindings=bindings,
        slots=slots,
        queues={name: management.queue(vhost, name) for name in queues},
        policies=management.policies(vhost),
        ring=ring() if ring is not None else None,
    )


def _read_slots(
    management: Management, vhost: str, destinations: set[str | ToExchange]
) -> dict[str, tuple[Exchange, list[Bound]]]:
    names = {destination.name for destination in destinations if isinstance(destination, ToExchange)}
    if not names:
        return {}
    exchanges = [exchange for exchange in management.exchanges(vhost) if exchange.name in names]
    bindings = management.bindings(vhost)
    return {one.name: (one, [bound for bound in bindings if bound.source == one.name]) for one in exchanges}


def direct_for(
    account: Account,
    addresses: Sequence[Address],
    exchange: str,
    management_url: str | None,
    credentials: Callable[[], tuple[str, str]],
    ring: Callable[[], Ring] | None,
    tls: ssl.SSLContext | None,
) -> Direct | None:
    """The straight way of a publisher whose books are for it; None for any other."""
    if not isinstance(account, DirectAccount):
        if management_url is None and ring is None:
            return None
        raise InvalidValue("via", "exchange", "queues, where management_url or ring is given")
    if management_url is None:
        raise InvalidValue(
            "management_url",
            None,
            "the URL of the management API, such as http://host:15672, where via is queues",
        )

    management = Management(management_url, credentials=credentials, tls=tls)
    return Direct(account, management, addresses, exchange, ring)


def needs_of(exchange: str) -> Needs:
    """What going straight past an exchange takes: the lease, every queue, and the exchange to fall back upon."""
    write = {("exchange", exchange), ("exchange", DEFAULT_EXCHANGE)}
    return Needs(configure={("queue", Beginning(LEASE_PREFIX))}, write=write)


class Direct:
    """What a publisher with ``via="queues"`` shows of its way: ``publisher.direct``."""

    def __init__(
        self,
        account: DirectAccount,
        management: Management,
        addresses: Sequence[Address],
        exchange: str,
        ring: Callable[[], Ring] | None,
    ) -> None:
        self.lease: str = f"{LEASE_PREFIX}{exchange}.{secrets.token_hex(6)}"
        """The name of the queue that stands for this publisher."""
        if not exchange or len(self.lease.encode()) > 255:
            raise InvalidValue("exchange", exchange, "a name of 1 to 225 bytes")
        self.active: bool = False
        """Whether messages go straight to the queues now."""
        self.reason: str = ""
        """Why they no longer do."""
        self.suspect: range = range(0)
        """Rows, all of which went out after the last good reading, or had no outcome by then: those that went
        straight may lie on another queue than the exchange would have chosen."""
        self._account = account
        self._management = management
        self._addresses = addresses
        self._exchange = exchange
        self._ring = ring
        self._vhost = self._server_version = ""
        self._frame_max = 0
        self._route: DirectRoute | None = None
        self._good = 0  # rows below it were settled when the last good reading began
        self._checking = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<Direct: {'active' if self.active else self.reason or 'not yet'}>"

    # -- its life ----------------------------------------------------------------------------------

    def on_limits(self, server_version: str, frame_max: int) -> None:
        """The publisher is connected; another release may count the destinations in another way."""
        self._server_version, self._frame_max = server_version, frame_max
        self._account.look.set()
        if self._route is not None and server_version != self._route.release:
            self._stop(f"the publisher is now connected to RabbitMQ {server_version}")

    def open(self) -> None:
        """Take the lease, read the topology and go straight.

        Raises:
            Unpredictable: it is not wholly known where the exchange would send messages; the reason is named.
        """
        connection = self._take_lease()
        try:
            route = self._first_route()
        except BaseException:
            _close(connection)
            raise
        self._account.look.clear()
        self._route, self.active = route, True
        self._account.go_straight(route, self._exchange.encode(), frame_max=self._frame_max)
        self._thread = threading.Thread(
            target=self._watch, args=(connection,), name="rabbit-chx watch", daemon=True
        )
        self._thread.start()

    def _first_route(self) -> DirectRoute:
        if LOCK in self._management.queue_names(self._vhost, f"^{re.escape(LOCK)}$"):
            raise Unpredictable(
                f"messages cannot go straight to the queues: somebody changes the topology (queue {LOCK!r} is held); "
                "try again when they are done"
            )
        route = self._read()
        if isinstance(route, Refusal):
            raise Unpredictable(f"messages cannot go straight to the queues: {route}")
        if route.release != self._server_version:
            raise Unpredictable(
                f"the publisher is connected to RabbitMQ {self._server_version}, but the management API answers "
                f"for {route.release}: a cluster that is being upgraded may route in two ways"
            )
        return route

    def close(self) -> None:
        """Give the lease back."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(10.0)

    def check(self) -> bool:
        """Read the topology now; whether messages still go straight."""
        with self._checking:
            if not self.active:
                return False
            first = self._account.first_in_doubt()
            try:
                route = self._read()
            except Exception as error:  # noqa: BLE001 - whatever the ring's reader raises: nothing is known any more
                self._stop(f"the topology cannot be read: {error}")
                return False
            if isinstance(route, Refusal):
                self._stop(str(route))
            elif route != self._route:
                self._stop(f"the topology behind exchange {self._exchange!r} has changed")
            else:
                self._good = first
            return self.active

    def _stop(self, reason: str) -> None:
        if not self.active:
            return
        self.active = False
        self.reason, self.suspect = reason, self._account.go_through_exchange(self._good)
        rows = f"rows {self.suspect.start} to {self.suspect.stop - 1}" if self.suspect else "no row"
        log.warning(
            "messages go through exchange %r from now on: %s; %s (counted from 0) may lie on the wrong queue",
            *(self._exchange, reason, rows),
        )

    def _read(self) -> DirectRoute | Refusal:
        return decide(read_facts(self._management, self._vhost, self._exchange, self._ring))

    # -- the lease ---------------------------------------------------------------------------------

    def _take_lease(self) -> pika.BlockingConnection:
        """A connection that holds the queue, after a look whether the user may publish to queues and exchange."""
        reason = ""
        for address in self._addresses:
            connection = None
            try:
                parameters = address.parameters(timeout=5.0)
                parameters.client_properties["connection_name"] += " (lease)"
                connection = pika.BlockingConnection(parameters)
                channel = connection.channel()
                channel.queue_declare(self.lease, exclusive=True, auto_delete=True)
                channel.confirm_delivery()
                channel.basic_publish("", self.lease, b"", mandatory=True)
                no = may_publish.ask(connection, self._exchange)
                if no is not None and no.code == 403:
                    raise ChannelClosedByBroker(*no)
            except (AMQPError, OSError, BrokerUnavailable) as error:
                reason = str(why_down(error, address.where, needs=needs_of(self._exchange)))
                if connection is not None:
                    _close(connection)
            else:
                self._vhost = parameters.virtual_host
                return connection
        raise BrokerUnavailable(f"the lease {self.lease!r} cannot be had: {reason}")

    def _watch(self, connection: pika.BlockingConnection) -> None:
        """Hold the lease while anything goes straight, or did and has no outcome."""
        due = time.monotonic() + POLL_SECONDS
        try:
            while not self._stopping.is_set() and (self.active or self._account.some_in_doubt):
                connection.process_data_events(time_limit=_TICK)
                if self.active and (time.monotonic() >= due or self._account.look.is_set()):
                    self._account.look.clear()
                    due = time.monotonic() + POLL_SECONDS
                    self.check()
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody watches any more
            with self._checking:
                self._stop(f"the lease was lost: {why_down(error, 'the broker')}")
        finally:
            _close(connection)


def _close(connection: pika.BlockingConnection) -> None:
    if connection.is_open:
        try:
            connection.close()
        except (AMQPError, OSError) as error:
            log.debug("the lease's connection did not close in good order: %s", error)
