"""How a sample of keys spreads over the queues of an exchange: shares, skew, chi-squared and hot keys.

Values in, values out. :class:`Spread` is what ``rabbit-chx simulate`` prints, and what the Spark connector's ``spread``
returns of a DataFrame; :func:`spread` makes one of keys at hand, :class:`Tally` of keys that come in blocks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import erfc, exp, lgamma, log, sqrt
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from rabbit_chx.kernel.table import SEEDS
from rabbit_chx.markup import notebook
from rabbit_chx.movement import shares

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from rabbit_chx.exchange import ConsistentHashExchange

__all__ = ["HotKey", "QueueShare", "Spread", "Tally", "chi_squared_tail", "spread", "whole"]

_Table: TypeAlias = "list[tuple[str, ...]]"

_MOST_KEYS: Final = 1_000_000
"""So many distinct keys are counted one by one; of more, the rarest are forgotten."""


@dataclass(frozen=True, slots=True)
class QueueShare:
    """What one queue gets."""

    queue: str
    rows: int
    keys: int
    """Distinct keys; of a DataFrame, and of more than a million keys, only about so many."""
    share: float
    """Of the rows."""
    exact: float
    """The share of all possible keys that the exchange gives to this queue."""


@dataclass(frozen=True, slots=True)
class HotKey:
    """A key with many rows."""

    key: str
    queue: str
    rows: int
    share: float
    """Of all rows."""


@dataclass(frozen=True)
class Spread:
    """How rows spread over queues; ``str()`` of it is a table."""

    rows: int
    queues: tuple[QueueShare, ...]
    """In the order of the buckets, those that get nothing included."""
    hot: tuple[HotKey, ...]
    """The keys with the most rows, the hottest first; none that has a single row."""
    about: bool = True
    """Whether distinct keys were estimated; rows are counted in any case."""

    @property
    def skew(self) -> float:
        """The rows of the fullest queue, as a multiple of the mean; 1.0 where all queues are alike."""
        return max(queue.rows for queue in self.queues) * len(self.queues) / self.rows if self.rows else 1.0

    @property
    def chi_squared(self) -> float:
        """How far the rows are from the exact shares.

        About :attr:`degrees_of_freedom` where every row has a key of its own. More rows to a key make it larger
        by as much, which is no fault of the ring's.
        """
        expected = ((queue.rows, self.rows * queue.exact) for queue in self.queues)
        return sum((rows - mean) ** 2 / mean for rows, mean in expected if mean)

    @property
    def degrees_of_freedom(self) -> int:
        """One less than there are queues."""
        return len(self.queues) - 1

    @property
    def p_value(self) -> float:
        """How often rows with a key of their own each would be at least as far from the exact shares."""
        return chi_squared_tail(self.chi_squared, self.degrees_of_freedom)

    def __str__(self) -> str:
        queues, hot = (_aligned(table) for table in self._tables())
        return "\n".join([self._summary(), "", *queues, *(["", *hot] if self.hot else [])])

    def _repr_html_(self) -> str:
        """The same in a notebook."""
        (head, *queues), (hot_head, *hot) = self._tables()
        shown = notebook(self._summary(), head, queues)
        return shown + notebook("", hot_head, hot) if self.hot else shown

    def _summary(self) -> str:
        return (
            f"{self.rows:,} rows on {len(self.queues)} queues; max/mean {self.skew:.2f}; "
            f"chi-squared {self.chi_squared:,.1f} ({self.degrees_of_freedom} degrees of freedom)"
        )

    def _tables(self) -> tuple[_Table, _Table]:
        """The queues and the hottest keys, each below its titles."""
        queues: _Table = [("queue", "rows", "share", "exact", "keys (about)" if self.about else "keys")]
        queues += [
            (one.queue, f"{one.rows:,}", f"{one.share:.2%}", f"{one.exact:.2%}", f"{one.keys:,}")
            for one in self.queues
        ]
        hot: _Table = [("hottest keys", "rows", "share", "queue")]
        hot += [(repr(one.key), f"{one.rows:,}", f"{one.share:.2%}", one.queue) for one in self.hot]
        return queues, hot


_LEFT: Final = {"queue", "hottest keys"}


def _aligned(table: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines with columns of one width; numbers stand right."""
    columns = [
        [text.ljust(width) if column[0] in _LEFT else text.rjust(width) for text in column]
        for column in zip(*table, strict=True)
        for width in [max(map(len, column))]
    ]
    return ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]


def spread(exchange: ConsistentHashExchange, keys: Sequence[Any], *, hot: int = 10) -> Spread:
    """How these keys spread; each counts as often as it is there.

    >>> from rabbit_chx import ConsistentHashExchange
    >>> print(spread(ConsistentHashExchange(["q0", "q1"]), ["red", "green", "green", "blue"], hot=1))
    4 rows on 2 queues; max/mean 2.00; chi-squared 4.0 (1 degrees of freedom)
    <BLANKLINE>
    queue  rows    share   exact  keys
    q0        0    0.00%  50.01%     0
    q1        4  100.00%  49.99%     3
    <BLANKLINE>
    hottest keys  rows   share  queue
    'green'          2  50.00%  q1
    """
    tally = Tally(exchange)
    tally.add(keys, exchange.route_many(keys))
    return tally.spread(hot=hot)


def whole(exchange: ConsistentHashExchange) -> Spread:
    """How all keys there can be spread: the rows are the classes of hashes that a ring tells apart."""
    exact = shares(exchange.ring)
    queues = (
        QueueShare(str(queue), round(share * SEEDS), round(share * SEEDS), share, share)
        for queue, share in exact.items()
    )
    return Spread(SEEDS, tuple(queues), (), about=False)


class Tally:
    """Counts keys that come in blocks; what it keeps does not grow with their number."""

    def __init__(self, exchange: ConsistentHashExchange, *, most_keys: int = _MOST_KEYS) -> None:
        self._exchange = exchange
        self._rows = np.zeros(len(exchange.destinations), np.int64)
        self._keys: Counter[Any] = Counter()
        self._owner_of: dict[Any, int] = {}
        self._most_keys = most_keys
        self._forgot = False

    def add(self, keys: Iterable[Any], owners: NDArray[np.integer[Any]]) -> None:
        """Count a block of keys, with the index of the destination of each."""
        keys = list(keys)
        self._rows += np.bincount(owners, minlength=len(self._rows))
        self._keys.update(keys)
        self._owner_of.update(zip(keys, owners.tolist(), strict=True))
        if len(self._keys) > self._most_keys:
            self._forget()

    def _forget(self) -> None:
        """Keep the half of the keys that have come most often; a hot one is among them long before it is hot."""
        self._forgot = True
        self._keys = Counter(dict(self._keys.most_common(self._most_keys // 2)))
        self._owner_of = {key: self._owner_of[key] for key in self._keys}

    def spread(self, *, hot: int = 10) -> Spread:
        """What was counted so far."""
        names = [str(destination) for destination in self._exchange.destinations]
        exact = shares(self._exchange.ring)
        total = int(self._rows.sum())
        keys = Counter(self._owner_of.values())
        queues = tuple(
            QueueShare(name, rows, keys[index], rows / total if total else 0.0, exact[destination])
            for index, (name, destination, rows) in enumerate(
                zip(names, self._exchange.destinations, self._rows.tolist(), strict=True)
            )
        )
        most = [(key, rows) for key, rows in self._keys.most_common(hot) if rows > 1]
        hottest = sorted(most, key=lambda one: (-one[1], _text(one[0])))
        named = (HotKey(_text(key), names[self._owner_of[key]], n, n / total) for key, n in hottest)
        return Spread(total, queues, tuple(named), about=self._forgot)


def _text(key: Any) -> str:
    return key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else str(key)


def chi_squared_tail(value: float, degrees: int) -> float:
    """The chance of a chi-squared that is larger: its closed form for whole degrees of freedom.

    >>> round(chi_squared_tail(18.307, 10), 4)
    0.05
    """
    if degrees < 1 or value <= 0:
        return 1.0
    half = value / 2
    at = 0.5 if degrees % 2 else 1.0
    tail = erfc(sqrt(half)) if degrees % 2 else exp(-half)
    while at < degrees / 2:
        tail += exp(at * log(half) - half - lgamma(at + 1))
        at += 1
    return min(tail, 1.0)
