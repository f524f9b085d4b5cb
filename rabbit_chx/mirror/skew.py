"""Measure how a sample of keys spreads over the queues of an exchange: shares, skew, chi-squared and hot keys.

``rabbit-chx simulate`` prints a :class:`Spread`, and the Spark connector's ``spread`` returns one for a DataFrame.
:func:`spread` computes it from keys in memory, :class:`Tally` from keys that arrive in blocks. No I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import erfc, exp, lgamma, log, sqrt
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rabbit_chx.base.markup import notebook
from rabbit_chx.base.text import counted, text_of
from rabbit_chx.errors import Unroutable
from rabbit_chx.mirror.exchange import NO_BUCKET, ConsistentHashExchange
from rabbit_chx.mirror.hashing import as_column
from rabbit_chx.mirror.kernel.table import SEEDS
from rabbit_chx.mirror.movement import shares

_Table: TypeAlias = "list[tuple[str, ...]]"

_MOST_KEYS: Final = 1_000_000
"""The most distinct keys that are counted one by one; above it, the rarest are dropped."""


@dataclass(frozen=True, slots=True)
class QueueShare:
    """The part of a sample that one queue gets."""

    queue: str
    rows: int
    keys: int
    """Distinct keys; an estimate for a DataFrame, and above a million keys only those still remembered."""
    share: float
    """The queue's share of the rows."""
    exact: float
    """The share of all possible keys that the exchange gives to this queue."""


@dataclass(frozen=True, slots=True)
class HotKey:
    """A key with many rows."""

    key: str
    queue: str
    rows: int
    share: float
    """The key's share of all rows."""


@dataclass(frozen=True)
class Spread:
    """How rows spread over queues; ``str()`` formats it as a table."""

    rows: int
    queues: tuple[QueueShare, ...]
    """All queues, in the order of the buckets, including those that get nothing."""
    hot: tuple[HotKey, ...]
    """The keys with the most rows, the hottest first; keys with a single row are left out."""
    about: bool = True
    """Whether the number of distinct keys is an estimate; the number of rows is always exact."""

    @property
    def skew(self) -> float:
        """The rows of the fullest queue as a multiple of the mean; 1.0 if all queues get the same."""
        return max(queue.rows for queue in self.queues) * len(self.queues) / self.rows if self.rows else 1.0

    @property
    def chi_squared(self) -> float:
        """How far the rows are from the exact shares.

        About :attr:`degrees_of_freedom` if every row has a different key. With more rows per key it grows in
        proportion, which does not mean that the ring is uneven.
        """
        expected = ((queue.rows, self.rows * queue.exact) for queue in self.queues)
        return sum((rows - mean) ** 2 / mean for rows, mean in expected if mean)

    @property
    def degrees_of_freedom(self) -> int:
        """The number of queues minus one."""
        return len(self.queues) - 1

    @property
    def p_value(self) -> float:
        """The chance that rows with all-different keys are at least as far from the exact shares."""
        return chi_squared_tail(self.chi_squared, self.degrees_of_freedom)

    @property
    def verdict(self) -> str:
        """What the chance says, as a sentence."""
        if self.p_value >= 0.01:
            return f"{self.p_value:.0%} of samples of distinct keys are at least as uneven."
        return "less than 1% of samples of distinct keys are as uneven. Look at the hottest keys: all rows of a key go to one queue."

    def __str__(self) -> str:
        queues, hot = (_aligned(table) for table in self._tables())
        return "\n".join([self._summary(), "", *queues, *(["", *hot] if self.hot else [])])

    def _repr_html_(self) -> str:
        """Render the tables in a notebook."""
        (head, *queues), (hot_head, *hot) = self._tables()
        shown = notebook(self._summary(), head, queues)
        return shown + notebook("", hot_head, hot) if self.hot else shown

    def _summary(self) -> str:
        return (
            f"{counted(self.rows, 'row')} on {counted(len(self.queues), 'queue')}; max/mean {self.skew:.2f}; "
            f"chi-squared {self.chi_squared:,.1f} ({self.degrees_of_freedom} degrees of freedom)"
        )

    def _tables(self) -> tuple[_Table, _Table]:
        """Return the tables of queues and of hottest keys, each with its header row."""
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
    """Format a table as lines with aligned columns; numbers are right-aligned."""
    columns = [
        [text.ljust(width) if column[0] in _LEFT else text.rjust(width) for text in column]
        for column in zip(*table, strict=True)
        for width in [max(map(len, column))]
    ]
    return ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]


def spread(exchange: ConsistentHashExchange, keys: Iterable[Any], *, hot: int = 10) -> Spread:
    """Measure how these keys spread over the queues; repeated keys count each time.

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
    tally, keys = Tally(exchange), as_column(keys)
    tally.add(keys, exchange.route_many(keys))
    return tally.spread(hot=hot)


def whole(exchange: ConsistentHashExchange) -> Spread:
    """Return the spread of all possible keys; a row is one of the 2^21 seeds that a ring distinguishes."""
    if not len(exchange.ring):
        raise Unroutable(NO_BUCKET)
    exact = shares(exchange.ring)
    queues = (
        QueueShare(str(queue), round(share * SEEDS), round(share * SEEDS), share, share)
        for queue, share in exact.items()
    )
    return Spread(SEEDS, tuple(queues), (), about=False)


class Tally:
    """Counts keys that arrive in blocks, in bounded memory."""

    def __init__(self, exchange: ConsistentHashExchange, *, most_keys: int = _MOST_KEYS) -> None:
        self._exchange = exchange
        self._rows = np.zeros(len(exchange.destinations), np.int64)
        self._keys: Counter[Any] = Counter()
        self._owner_of: dict[Any, int] = {}
        self._most_keys = most_keys
        self._forgot = False

    def add(self, keys: Iterable[Any], owners: NDArray[np.integer[Any]]) -> None:
        """Count a block of keys, given the index of each key's destination."""
        keys = list(map(_distinct, keys))
        self._rows += np.bincount(owners, minlength=len(self._rows))
        self._keys.update(keys)
        self._owner_of.update(zip(keys, owners.tolist(), strict=True))
        if len(self._keys) > self._most_keys:
            self._forget()

    def _forget(self) -> None:
        """Keep the more frequent half of the keys; a key that becomes hot is in it early on."""
        self._forgot = True
        self._keys = Counter(dict(self._keys.most_common(self._most_keys // 2)))
        self._owner_of = {key: self._owner_of[key] for key in self._keys}

    def spread(self, *, hot: int = 10) -> Spread:
        """Return the spread of the keys counted so far."""
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
        hottest = sorted(most, key=lambda one: (-one[1], _shown(one[0])))
        named = (HotKey(_shown(key), names[self._owner_of[key]], n, n / total) for key, n in hottest)
        return Spread(total, queues, tuple(named), about=self._forgot)


def _distinct(key: Any) -> Any:
    """A value that equals that of no other key: 1, 1.0 and True are equal in Python, but not in Erlang."""
    return key if isinstance(key, (str, bytes)) else (type(key), text_of(key))


def _shown(key: Any) -> str:
    return key[1] if isinstance(key, tuple) else text_of(key)


def chi_squared_tail(value: float, degrees: int) -> float:
    """Return the chance of a larger chi-squared, by the closed form for integer degrees of freedom.

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
