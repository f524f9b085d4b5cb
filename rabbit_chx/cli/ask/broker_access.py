"""What the topology verbs are about: topologies in a file, and a broker, reached by AMQP, its management API and its node."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from threading import Timer
from typing import TYPE_CHECKING, Any, Final

import click

from rabbit_chx.base.text import listed
from rabbit_chx.base.timeouts import CONNECT
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.amqp import connect
from rabbit_chx.broker.reading.node import NodeCommand
from rabbit_chx.broker.reading.reader import count_messages, read, read_existence
from rabbit_chx.broker.reading.ring_order import learn
from rabbit_chx.cli.ask.inputs import read_pairs
from rabbit_chx.cli.ask.options import (
    ACCESS_OPTIONS,
    FILE,
    Login,
    broker_options,
    check_names,
    connection_options,
    management_options,
    pairs,
    refuse,
)
from rabbit_chx.cli.show.output import echo, has_changed, notice, waiting
from rabbit_chx.cli.show.plan_rows import condense
from rabbit_chx.cli.verb import Exit, bundle, option
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, RabbitChxError
from rabbit_chx.topology.checks.cluster import why_unchangeable
from rabbit_chx.topology.file.definitions import looks_like_definitions
from rabbit_chx.topology.file.load import read_file, topologies
from rabbit_chx.topology.file.problems import known_exchanges
from rabbit_chx.topology.graph import part_behind
from rabbit_chx.topology.model import Observed, Topology
from rabbit_chx.topology.planning.plan_file import OPTIONS, is_plan_file, load_plan

if TYPE_CHECKING:
    import pika

    from rabbit_chx.broker.management import Management

_PLUGIN: Final = "rabbitmq_management"
"""Part of the error for a missing management API, and of no other error."""
_MOST_COUNTED: Final = 100
"""Queues that are counted one by one, each at the cost of a few round trips."""
_SILENT_AFTER: Final = 3.0
_WORST_FIRST: Final = (Exit.PARTLY, Exit.FAILED, Exit.DIFFERENT, Exit.FINE)


@dataclass(frozen=True)
class BrokerAccess:
    """Where a broker is, and how to reach it."""

    url: str | BrokerUrl | None
    management_of: partial[Management]
    login: Login
    connect_timeout: float = CONNECT
    node: str | None = None
    probe: str | None = None
    pairs: tuple[tuple[str, str], ...] = ()
    """Exchanges, each with a file of keys and the queues that received them."""
    amqp_only: bool = False

    @property
    def given(self) -> BrokerUrl:
        """The URL, which must be there."""
        if self.url is None:
            raise click.UsageError(
                "missing broker URL: pass --url or set AMQP_URL (`lint` and `plan FILE --against OTHER_FILE` need none)"
            )
        return BrokerUrl.parse(self.url)

    def amqp(self, vhost: str, *, connection_name: str = "rabbit-chx topology") -> pika.BlockingConnection:
        """A connection to a virtual host."""
        with saying_if_silent(self.connect_timeout):
            url, timeout = self.given._at_vhost(vhost), self.connect_timeout
            return connect(url, timeout=timeout, **self.login, connection_name=connection_name)

    @cached_property
    def management(self) -> Management:
        """The management API, which has answered."""
        return reached(self.management_of(self.given, **self.login), self.connect_timeout)

    @property
    def node_command(self) -> NodeCommand | None:
        """The command that evaluates Erlang on a node, if one was given."""
        return NodeCommand(self.node) if self.node else None

    def read(self, wanted: Topology, *, consumers: bool = False) -> Observed:
        """The virtual host of a topology as the broker has it; with ``consumers``, which queues have none, too."""
        self.given._at_vhost(wanted.vhost)  # a URL that names another is a mistake
        if self.amqp_only:
            with waiting("Reading the broker"), self.amqp(wanted.vhost) as connection:
                return read_existence(connection, wanted)
        try:
            management = self.management
            with waiting("Reading the broker"):
                observed = read(management, wanted.vhost, node=self.node_command, consumers=consumers)
        except BrokerUnavailable as error:
            if _PLUGIN not in str(error):
                raise
            raise BrokerUnavailable(
                f"{error} (--management-url names another address, and --amqp-only works without it, but sees less)"
            ) from None
        warn_of_tracer(management, wanted.vhost)
        return self._learnt(observed)

    def recounted(self, observed: Observed, queues: Collection[str]) -> Observed:
        """With the messages that wait in these queues now: the statistics of the management API are seconds old.

        Statistics count unacknowledged messages too, so the larger number is kept.
        """
        # The API has no number for a queue until its first statistics.
        known = {queue.name for queue in observed.topology.queues if queue.type != "stream"}
        queues = sorted(known.intersection(queues))
        if self.amqp_only or not 0 < len(queues) <= _MOST_COUNTED or why_unchangeable(observed):
            return observed  # without a majority of the nodes, a connection is not even opened
        try:
            with waiting("Counting messages"), self.amqp(observed.topology.vhost) as connection:
                now = count_messages(connection, queues)
        except BrokerUnavailable:
            echo("The queues could not be asked how many messages wait: statistics are seconds old", err=True)
            return observed
        larger = {name: max(count, observed.backlog.get(name, 0)) for name, count in now.items()}
        return replace(observed, backlog={**observed.backlog, **larger})

    def _learnt(self, observed: Observed) -> Observed:
        """With the rings that pairs in files or probes work out."""
        if self.pairs:
            observed = learn(observed, self._seen(observed))
        if self.probe is None:
            return observed
        from rabbit_chx.broker.reading.probe import probe

        with self.amqp(observed.topology.vhost) as connection:
            return learn(observed, probe(connection, observed, self.probe))

    def _seen(self, observed: Observed) -> dict[str, list[tuple[Any, str]]]:
        """The pairs of all files by exchange."""
        seen: dict[str, list[tuple[Any, str]]] = {}
        for name, path in self.pairs:
            exchange = observed.topology.exchange(name)
            if exchange is None or name not in observed.rings:
                known = ", ".join(condense(map(repr, observed.rings))) or "it has none"
                raise InvalidValue("--pairs", name, f"an x-consistent-hash exchange of the broker: {known}")
            found = read_pairs(path, exchange.hash_property, option="--pairs")
            seen.setdefault(name, []).extend(found)
        return seen


def reached(management: Management, timeout: float) -> Management:
    """The management API, once it has answered within ``timeout`` seconds."""
    with saying_if_silent(timeout):
        management._check_answers(timeout)
    return management


@contextmanager
def saying_if_silent(timeout: float) -> Iterator[None]:
    """Say while a broker does not answer, for example one that hangs, that the command waits and gives up later."""

    def say() -> None:
        limit = f"this command gives up after {timeout:g} seconds (--connect-timeout)"
        notice("Note", f"the broker has not answered for {_SILENT_AFTER:g} seconds; {limit}")

    timer = Timer(_SILENT_AFTER, say)
    if timeout > _SILENT_AFTER:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def note_unproven(observed: Observed, exchanges: Iterable[str]) -> None:
    """Say which of the exchanges have a single binding that may have no buckets, for all that was read."""
    unproven = {name for name, source in observed.ring_sources.items() if source == "trivial"}
    names = sorted(name for name in unproven & set(exchanges) if observed.rings[name].bindings)
    if names:
        notice(
            "Note",
            f"{listed(names, 'exchange')}: the only binding is assumed to have buckets. If another program has bound its "
            "destination twice and unbound it once, it has none, and messages are lost. --node shows it, and `apply` "
            "with --node records it",
        )


def warn_of_tracer(management: Management, vhost: str) -> None:
    """Say, once in a command, that the message tracer is on: a `rebalance` that was killed cannot turn it off."""
    said = click.get_current_context().meta.setdefault(__name__, set())
    if vhost not in said and (hint := tracer_hint(management, vhost)):
        said.add(vhost)
        notice(
            "Warning",
            f"the message tracer of virtual host {vhost!r} is on, so the broker copies every message. {hint}",
        )


def tracer_hint(management: Management, vhost: str) -> str:
    """How the message tracer is turned off; empty if it is off, or if the user cannot see it."""
    with suppress(BrokerUnavailable):
        if management._tracing(vhost):
            return (
                "After a `rebalance` that was killed, the node turns it off by itself; "
                f"`rabbitmqctl trace_off -p {shlex.quote(vhost)}` on each node does at once"
            )
    return ""


def with_live(given: dict[str, Any]) -> dict[str, Any]:
    """The values with the broker as ``live``, as far as the command has the options of one."""
    names = [each.name for each in fields(BrokerAccess) if each.name in given]
    return {"live": BrokerAccess(**{name: given.pop(name) for name in names}), **given}


def with_access(given: dict[str, Any]) -> dict[str, Any]:
    """The values with the broker, whose rings are read, as ``live``."""
    if given["amqp_only"]:
        refuse("node", "probe", "pairs", on="a broker that is read with --amqp-only")
    read_from = tuple(pairs("--pairs", given["pairs"], "EXCHANGE=FILE", empty=False))
    return with_live(given | {"pairs": read_from})


live_options = bundle(connection_options, management_options, gather=with_live)
"""The options of a broker and one of its virtual hosts; the command gets ``live``, with --node if it has that option."""


broker_access_options = bundle(broker_options, management_options, *ACCESS_OPTIONS, gather=with_access)
"""The options of `BrokerAccess`, which the command gets as ``live``."""

vhosts_option = option(
    "-V",
    "--vhost",
    "vhosts",
    multiple=True,
    metavar="VHOST",
    callback=check_names,
    help="Only this virtual host. The default is the URL's, or all of a definitions.json.",
)


def load_topologies(
    file: str, vhosts: Sequence[str] = (), url: str | BrokerUrl | None = None
) -> tuple[Topology, ...]:
    """The topologies in a file: of the given virtual hosts, else of the URL's, else all."""
    document = read_file(file)
    named = BrokerUrl.parse(url).named_vhost if url else None
    if not vhosts and named is not None and looks_like_definitions(document.value):
        vhosts = (named,)
    return topologies(document, vhosts)


def _with_topologies(given: dict[str, Any]) -> dict[str, Any]:
    found = load_topologies(given.pop("file"), given.pop("vhosts"), given["live"].url)
    return given | {"topologies": found}


def _with_saved(given: dict[str, Any]) -> dict[str, Any]:
    if not is_plan_file(given["file"]):
        return _with_topologies(given) | {"saved": None}
    refuse("vhosts", "exchanges", *OPTIONS, on="a saved plan, which was made with its own options")
    saved = load_plan(given.pop("file"))
    del given["vhosts"]
    return given | {"saved": saved, "topologies": tuple(each.wanted for each in saved.reviewed)}


_FILE_AND_BROKER: Final = (click.argument("file", type=FILE), vhosts_option, broker_access_options)
topology_options = bundle(*_FILE_AND_BROKER, gather=_with_topologies)
"""A topology file and a broker; the command gets ``topologies`` and ``live``."""
plan_file_options = bundle(*_FILE_AND_BROKER, gather=_with_saved)
"""A topology file or a plan file, and a broker; the command also gets the plan as ``saved``, or None."""


def parts_behind(
    wanted: Sequence[Topology], exchanges: Collection[str], *, without: str
) -> Sequence[Topology]:
    """Of each topology, these exchanges and what they lead to; without names, all of it.

    ``without`` is the option for what the file does not name, which then means everything else.
    """
    if not exchanges:
        return wanted
    refuse(without, on="single exchanges (--exchange)")
    known = {each.name for topology in wanted for each in topology.exchanges}
    for name in exchanges:
        if name not in known:
            raise InvalidValue("--exchange", name, "an exchange of the file", known_exchanges(name, known))
    named = [each for each in wanted if any(map(each.exchange, exchanges))]
    return [part_behind(each, exchanges, alternates=True) for each in named]


def for_each_vhost(wanted: Sequence[Topology], act: Callable[[Topology], int]) -> int:
    """Act on each topology and return the worst exit code; a failure ends it, and after a change the work is partly done."""
    codes = []
    for topology in wanted:
        if len(wanted) > 1:
            echo(f"Virtual host {topology.vhost!r}:", err=True)
        try:
            codes.append(act(topology))
        except RabbitChxError as error:
            if not has_changed():
                raise
            notice("Error", str(error))
            codes.append(Exit.FAILED)
        if codes[-1] in (Exit.FAILED, Exit.PARTLY):
            break
    worst = next(code for code in _WORST_FIRST if code in codes)
    return Exit.PARTLY if has_changed() and worst == Exit.FAILED else worst
