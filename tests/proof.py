"""The books of `make proof`: what each fault cost, what each comparison found, and the seed that repeats a run.

    pytest tests/faults                        prints the tables at its end
    pytest tests/faults --proof FILE           writes them into FILE too, between the two marks in it
    RABBIT_CHX_SEED=17 pytest tests/faults     makes the random choices of the run whose table names 17
    RABBIT_CHX_PROOF=long                      every round and every release, as `make proof` sets it

Tests book (:func:`book`) before they judge, so that a loss is in the table too.
"""

from __future__ import annotations

import os
import random
import secrets
from dataclasses import dataclass
from typing import Final

SEED: Final = int(os.environ.get("RABBIT_CHX_SEED") or secrets.randbelow(2**32))
os.environ["RABBIT_CHX_SEED"] = str(SEED)  # for the workers of this run
LONG: Final = os.environ.get("RABBIT_CHX_PROOF", "") == "long"
"""Whether to take the time: `make proof` does, CI does not."""


@dataclass(frozen=True)
class Fault:
    """What it cost to break something while messages were on their way."""

    area: str
    """Under which heading: Publisher, Topology, Cluster, Spark."""
    scenario: str
    release: str
    """Of RabbitMQ."""
    messages: int
    faults: int
    lost: int
    unexpected: int
    duplicated: int
    seconds: float
    control: str
    """What the same fault cost without the protection (``2,082 of 15,000``), or why it can cost nothing."""
    note: str = ""


@dataclass(frozen=True)
class Check:
    """How many cases were compared with what is known to be right, or thrown at what has to refuse them."""

    area: str
    """Under which heading; `tests.proof_report` has them in their order."""
    what: str
    release: str
    """Of RabbitMQ, Erlang or PySpark; empty where none takes part."""
    cases: int
    wrong: int
    seconds: float
    control: str
    """What shows that a wrong case would have been seen (``a kernel off by one: 9,990 of 10,000 seen``)."""


FAULTS: Final[list[Fault]] = []
CHECKS: Final[list[Check]] = []
MEASURES: Final[list[str]] = []
"""What else was measured, one line each."""


def book(line: Fault | Check | str) -> None:
    """Add a line to the tables of this run, or to what else was measured."""
    match line:
        case Fault():
            FAULTS.append(line)
        case Check():
            CHECKS.append(line)
        case str():
            MEASURES.append(line)


def dice(*purpose: object) -> random.Random:
    """Random numbers for one purpose, the same in each run with the same seed."""
    return random.Random(f"{SEED} {purpose}")
