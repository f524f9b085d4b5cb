"""How a ring divides the key space, and how much of it a change of the ring moves.

A ring tells 2^21 keys apart, each standing for an equal part of all hashes, so everything here is
counted and nothing is sampled: the shares are exact, as are their sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rabbit_chx.kernel.table import SEEDS, bucket_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from rabbit_chx.ring import Destination, Ring

__all__ = ["Movement", "moved", "shares"]


def shares(ring: Ring) -> dict[Destination, float]:
    """The exact share of all hashed keys that each destination gets, in bucket order.

    >>> shares(Ring.of({"q0": 1, "q1": 3}))
    {'q0': 0.25033092498779297, 'q1': 0.749669075012207}
    """
    counts = np.bincount(_owners(ring), minlength=len(ring.destinations))
    return {
        destination: int(count) / SEEDS for destination, count in zip(ring.destinations, counts, strict=False)
    }


@dataclass(frozen=True)
class Movement:
    """What changes hands between two rings, in shares of all hashed keys."""

    share: float
    """The keys that go to another destination than before."""

    flows: Mapping[tuple[Destination | None, Destination | None], float]
    """Every (from, to) with the share of keys that take it, those that stay included.
    None stands for nowhere: the ring has no bucket."""

    def between(self, source: Destination | None, target: Destination | None) -> float:
        """The share that goes from one destination to another; 0.0 where none does."""
        return self.flows.get((source, target), 0.0)


def moved(old: Ring, new: Ring) -> Movement:
    """The exact share of keys that change destination when one ring becomes the other.

    >>> moved(Ring.of(["q0", "q1", "q2"]), Ring.of(["q0", "q1", "q2", "q3"])).share
    0.24956703186035156
    """
    names_old, names_new = (*old.destinations, None), (*new.destinations, None)
    pairs, counts = np.unique(_owners(old) * len(names_new) + _owners(new), return_counts=True)
    flows = {
        (names_old[pair // len(names_new)], names_new[pair % len(names_new)]): count / SEEDS
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True)
    }
    share = sum((share for (before, after), share in flows.items() if before != after), start=0.0)
    return Movement(share, flows)


def _owners(ring: Ring) -> NDArray[np.int64]:
    """For every seed the index of its destination, or that behind the last one where there is no bucket."""
    if not len(ring):
        return np.full(SEEDS, len(ring.destinations), np.int64)
    index = {destination: i for i, destination in enumerate(ring.destinations)}
    of_bucket = np.array([index[destination] for destination in ring.bucket_map], np.int64)
    owners: NDArray[np.int64] = of_bucket[bucket_table(len(of_bucket)).all()]
    return owners
