"""Canaries of a watch: which keys to send, and what became of them. No IO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from secrets import token_hex
from typing import Any, Final, Literal, TypeAlias, get_args

from rabbit_chx.errors import RabbitChxError
from rabbit_chx.hashing import hash_on
from rabbit_chx.partitioning import AnyOf
from rabbit_chx.topology import Exchange, Observed, Router, ToExchange, Topology, reachable
from rabbit_chx.watch.snapshot import Problem, Snapshot

Outcome: TypeAlias = Literal["as expected", "misrouted", "unroutable", "unanswered", "not judged"]
_OUTCOMES: Final[dict[str, Outcome]] = {each.replace(" ", "_"): each for each in get_args(Outcome)}
"""The field of `CanaryResults` for each outcome."""

MOST: Final = 100
"""The most canaries in an interval."""
_MOST_TRIED: Final = 20_000
"""Keys to try before giving up on queues that none of them leads to."""
_BLIND: Final = 3
"""Canaries for each queue if the routes are unknown."""

_Parts: TypeAlias = dict[str, Any]
_Predict: TypeAlias = Callable[[int], frozenset[str] | None]


@dataclass(frozen=True, slots=True)
class Key:
    """A key for canaries. Keys that compare equal are expected in the same queues, and go to the same queue."""

    number: int
    parts: Mapping[str, Any] = field(compare=False)
    """The routing key, headers and properties, as `rabbit_chx.topology.Router` takes them."""
    expected: frozenset[str] | None = None
    """The queue that should get it, or several if the file leaves the choice open; None if there is no prediction."""
    queue: str | None = None
    """The queue that gets it, as far as the routes are known."""

    def __str__(self) -> str:
        return str(self.parts["routing_key"])

    @property
    def responsible(self) -> str | None:
        """The queue that should get it, if there is only one; otherwise the queue that gets it."""
        return next(iter(self.expected)) if self.expected and len(self.expected) == 1 else self.queue


@dataclass(frozen=True, slots=True)
class Canary:
    """One message."""

    id: str
    key: Key


@dataclass(frozen=True, slots=True)
class News:
    """What has happened to canaries since the last news."""

    sent: list[str] = field(default_factory=list)
    reports: list[tuple[str, str, float]] = field(default_factory=list)
    """Canary, queue, and the seconds from sending to the report."""
    returned: list[str] = field(default_factory=list)
    failure: str = ""
    """Why the newest canaries could not be sent, or their reports may be lost."""


@dataclass(frozen=True, slots=True)
class CanaryResults:
    """The results of the canaries in one interval; a canary that is still awaited has none."""

    sent: int = 0
    as_expected: int = 0
    misrouted: int = 0
    """Reported from another queue."""
    unroutable: int = 0
    """Returned by the broker."""
    unanswered: int = 0
    """Not reported by the end of the interval after the one in which it was sent."""
    not_judged: int = 0
    """Reported from a queue, but where it should go is unknown."""
    longest_seconds: float | None = None
    """The longest time from sending to the report."""
    problems: tuple[Problem, ...] = ()
    """The newest result of each queue, if it is bad."""

    @property
    def text(self) -> str:
        """The numbers in words."""
        found = [f"{number} {outcome}" for outcome, number in self.outcomes.items() if number]
        if self.longest_seconds is not None:
            found.append(f"longest round trip {self.longest_seconds:.3f} s")
        return ", ".join([f"{self.sent} sent", *found])

    @property
    def outcomes(self) -> dict[Outcome, int]:
        """The number of canaries with each outcome."""
        return {outcome: getattr(self, name) for name, outcome in _OUTCOMES.items()}

    def as_dict(self) -> dict[str, object]:
        """The numbers as a JSON object."""
        numbers = asdict(self)
        del numbers["problems"]
        return {**numbers, "text": self.text}


class Canaries:
    """The canaries of one watch."""

    def __init__(self) -> None:
        self._keys: dict[Key, None] = {}
        self._next = 0
        self._numbers = count(1)
        self._token = token_hex(8)
        self._to_send: list[dict[str, Key]] = [{}, {}]
        """The canaries of the last two calls of `next`."""
        self._sent: list[dict[str, Key]] = [{}, {}]
        """Those that were sent in the previous interval and in this one, and have no result yet."""
        self._results: dict[Key, tuple[Outcome, str]] = {}
        """The newest result of each key, with the queue that reported it."""

    def use(self, keys: Iterable[Key]) -> None:
        """Send these keys from now on."""
        self._keys = dict.fromkeys(keys)
        self._results = {key: found for key, found in self._results.items() if key in self._keys}

    def next(self) -> list[Canary]:
        """The canaries to send now: one for each key, or the next of them if there are too many."""
        keys, size = list(self._keys), len(self._keys)
        chosen = [keys[(self._next + each) % size] for each in range(min(size, MOST))]
        self._next = (self._next + len(chosen)) % size if size else 0
        canaries = [Canary(f"{self._token} {next(self._numbers)}", key) for key in chosen]
        self._to_send = [self._to_send[1], {each.id: each.key for each in canaries}]
        return canaries

    def settle(self, news: News, exchange: str) -> CanaryResults:
        """Return the results of an interval of this exchange."""
        known = self._to_send[0] | self._to_send[1]
        self._sent = [self._sent[1], {canary: known[canary] for canary in news.sent if canary in known}]
        if news.failure:  # nothing can be said about canaries whose reports may be lost
            self._sent, self._results = [{}, {}], {}
            failed = Problem("canary-not-sent", f"exchange {exchange!r}", news.failure)
            return CanaryResults(len(news.sent), problems=(failed,))
        found: list[tuple[int, Key, Outcome, str]] = []
        longest = None
        for canary, queue, seconds in news.reports:
            for age, key in self._taken([canary]):
                found.append((age, key, _judged(key, queue), queue))
                longest = max(seconds, longest or 0.0)
        found += ((age, key, "unroutable", "") for age, key in self._taken(news.returned))
        found += ((0, key, "unanswered", "") for key in self._sent[0].values())
        found.sort(key=lambda each: each[0])  # so that the newest result of a key counts
        settled = Counter[Outcome]()
        for _, key, outcome, queue in found:
            settled[outcome] += 1
            if key in self._keys:
                self._results[key] = outcome, queue
        return CanaryResults(
            sent=len(news.sent),
            **{name: settled[outcome] for name, outcome in _OUTCOMES.items()},
            longest_seconds=longest,
            problems=tuple(self._problems(exchange)),
        )

    def _taken(self, canaries: Iterable[str]) -> Iterator[tuple[int, Key]]:
        """Remove those of the canaries that have no result yet; yield the interval in which it was sent (0 for the previous one, 1 for this one) and its key."""
        for canary in canaries:
            for age, sent in enumerate(self._sent):
                if (key := sent.pop(canary, None)) is not None:
                    yield age, key

    def _problems(self, exchange: str) -> Iterator[Problem]:
        blind = Counter[Outcome]()
        for key, (outcome, queue) in self._results.items():
            if outcome not in _TEXTS:
                continue
            name = key.queue if outcome == "unanswered" else key.responsible
            if name is None:
                blind[outcome] += 1
            else:
                text = _TEXTS[outcome].format(key=str(key), queue=queue)
                yield Problem(f"canary-{outcome}", f"queue {name!r}", text, name)
        for outcome, number in blind.items():
            text = f"{number} of {len(self._keys)} canaries: {_BLIND_TEXTS[outcome]}"
            yield Problem(f"canary-{outcome}", f"exchange {exchange!r}", text)


_BLIND_TEXTS: Final[dict[Outcome, str]] = {
    "misrouted": "arrived in another queue",
    "unroutable": "the broker returned them, because no queue gets their keys",
    "unanswered": "no consumer reported them: the consumer is slow or absent, or does not report canaries",
}
_TEXTS: Final[dict[Outcome, str]] = {  # the outcomes that are problems
    "misrouted": "its canary {key!r} arrived in queue {queue!r}",
    "unroutable": "the broker returned its canary {key!r}, because no queue gets this key",
    "unanswered": "no consumer reported the queue's canary {key!r}: the consumer is slow or absent, or does not report canaries",
}


def _judged(key: Key, queue: str) -> Outcome:
    if key.expected is None:
        return "not judged"
    return "as expected" if queue in key.expected else "misrouted"


# ---- which keys


_NOWHERE: Final = ("now", "")
"""Instead of a queue: a key that should reach one and reaches none."""


def find_keys(
    current: Snapshot, wanted: Topology | None, shares: Mapping[str, float | None]
) -> tuple[Key, ...]:
    """One key for each queue that gets keys, or should get some, and is not a stream, as far as the routes are known.

    The expected queue is that of the file or, without a file, that of the start of the watch if the order of the buckets is
    still known. If the routes are unknown, there are more keys than queues, and those without a prediction are not judged.
    ``wanted`` is the topology file, and ``shares`` has the exact share of each queue.
    """
    observed = current.observed
    live = None if observed is None else observed.topology.exchange(current.exchange)
    if observed is None or live is None:
        return ()
    file = None if wanted is None else wanted.exchange(live.name)
    exchanges = [live] if file is None else [live, file]
    router = Router(observed.topology, release=observed.release, rings=observed.rings, client="pika")
    now = _predictor(exchanges, router)
    believed = _predictor(exchanges, _believed(current, observed, wanted))
    streams = {queue.name for queue in observed.topology.queues if queue.type == "stream"} & shares.keys()
    if now(0) is None and (streams or believed(0) is None):
        many = 0 if streams else min(MOST, _BLIND * len(shares))
        return tuple(Key(number, _parts(exchanges, number)) for number in range(many))
    first = wanted or (current.first or observed).topology
    queues = {each for each in reachable(first.expanded(), [ToExchange(live.name)]) if isinstance(each, str)}
    missing = {
        *(("now", queue) for queue, share in shares.items() if share != 0.0 and now(0)),
        *(("believed", queue) for queue in queues if believed(0)),
    }
    behind = reachable(observed.topology, [ToExchange(live.name)])
    if any(ToExchange(name) in behind and not ring.bindings for name, ring in observed.rings.items()):
        # A slot may have lost its queue, and a file does not say which slots lead to which.
        missing.add(_NOWHERE)
    missing -= {(kind, queue) for kind, queue in missing if queue in streams}
    return tuple(_chosen(exchanges, now, believed, missing, streams))


def _chosen(
    exchanges: Sequence[Exchange],
    now: _Predict,
    believed: _Predict,
    missing: set[tuple[str, str]],
    streams: set[str],
) -> Iterator[Key]:
    """Yield keys until each missing queue has one that goes there, or one that should."""
    for number in range(_MOST_TRIED):
        if not missing:
            return
        lands, expected = now(number), believed(number)
        covers = {
            *(("now", queue) for queue in lands or ()),
            *(("believed", queue) for queue in expected or ()),
        }
        if not lands and lands is not None and expected:
            covers.add(_NOWHERE)
        if covers & missing and not (lands or set()) & streams:
            missing -= covers
            known = lands or expected
            queue = next(iter(known)) if known is not None and len(known) == 1 else None
            yield Key(number, _parts(exchanges, number), expected, queue)


def _believed(current: Snapshot, observed: Observed, wanted: Topology | None) -> Router | None:
    """Predicts the routes that the exchange should have."""
    if wanted is not None:
        return Router(wanted, release=observed.release, client="pika")
    ring = observed.rings.get(current.exchange)
    if current.first is None or (ring is not None and not ring.known):
        return None
    return Router(current.first.topology, release=observed.release, rings=current.first.rings, client="pika")


def _predictor(exchanges: Sequence[Exchange], router: Router | None) -> _Predict:
    """A function that predicts the queue of the key with a number; several if only one of them is known to get it."""

    def predict(number: int) -> frozenset[str] | None:
        if router is None:
            return None
        try:
            found = router.route(exchanges[0].name, **_parts(exchanges, number))
        except RabbitChxError:
            return None
        if not found:
            return frozenset()
        if len(found) != 1:
            return None
        (queue,) = found
        return frozenset(map(str, queue.destinations)) if isinstance(queue, AnyOf) else frozenset({queue})

    return predict


def _parts(exchanges: Iterable[Exchange], number: int) -> _Parts:
    """The parts of a message with the key of this number, where each of these exchanges looks for its key."""
    name = f"canary-{number}"
    parts: _Parts = {"routing_key": name, "headers": {}, "properties": {}}
    for exchange in exchanges:
        part = hash_on(exchange.hash_header, exchange.hash_property).part
        if exchange.hash_header is not None:
            parts["headers"][exchange.hash_header] = name
        elif part != "routing_key":
            parts["properties"][part] = number if part == "timestamp" else name
    return parts
