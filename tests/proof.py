"""The results of `make proof`: what each fault cost, what each comparison found, and the seed that repeats a run.

    pytest tests/faults                        prints the tables at its end
    pytest tests/faults --proof FILE           also writes a summary into FILE, between its two marks, and the tables into FILE-results
    RABBIT_CHX_SEED=17 pytest tests/faults     makes the random choices of the run whose table names 17
    RABBIT_CHX_PROOF=long                      every round and every release, as `make proof` sets it

Tests call `record_result` before they assert, so that a loss is in the table, too.
"""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Final

import pytest


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in {"", "0", "false"}


LONG: Final = os.environ.get("RABBIT_CHX_PROOF", "") == "long"
"""Whether to run long: `make proof` does, CI does not."""
# As with Hypothesis (tests/conftest.py): CI makes the same random choices in each run, so that only a change can make a test fail.
SEED: Final = int(
    os.environ.get("RABBIT_CHX_SEED") or (1 if in_ci() and not LONG else secrets.randbelow(2**32))
)
os.environ["RABBIT_CHX_SEED"] = str(SEED)  # for the workers of this run


@dataclass(frozen=True)
class Fault:
    """What a fault cost while messages were published."""

    area: str
    """The heading, one of `tests.proof_report.FAULT_AREAS`."""
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
    """How many cases were compared with a known answer, or had to be refused."""

    area: str
    """The heading, one of `tests.proof_report.CHECK_AREAS`."""
    what: str
    release: str
    """Of RabbitMQ, Erlang or PySpark; empty if the check needs none."""
    cases: int
    wrong: int
    seconds: float
    control: str
    """What shows that a wrong case would have been seen (``a kernel off by one: 9,990 of 10,000 seen``)."""


class Lost(AssertionError):
    """A broken promise, which has no second try (`tests.second_try`)."""


def never(**broken: Collection[object]) -> None:
    """Fail for good if there is any message of these kinds: ``never(lost=..., out_of_order=...)``."""
    for kind, found in broken.items():
        if found:
            raise Lost(f"{len(found):,} {kind.replace('_', ' ')}, such as {[*islice(found, 10)]}")


@contextmanager
def promised() -> Iterator[None]:
    """Fail for good if the body fails, such as a wait for the last messages: what does not arrive is lost."""
    try:
        yield
    except (AssertionError, pytest.fail.Exception) as error:
        if str(error).startswith("Timeout (>"):  # of pytest-timeout, for the whole test
            raise
        raise Lost(str(error)) from error


RESULTS: Final[list[Fault | Check | str]] = []
"""What tests have recorded since the last report of a test, which takes it to `tests.proof_report`."""


def record_result(result: Fault | Check | str) -> None:
    """Add a line to the tables, or to the other measurements, of this run."""
    RESULTS.append(result)


def dice(*purpose: object) -> random.Random:
    """Random numbers for one purpose, the same in each run with the same seed."""
    return random.Random(f"{SEED} {purpose}")
