"""Advice in two wordings: as Python callers follow it, and with the options of the command line.

Errors, notes and findings contain the first; what the command line prints passes through `in_options`, which replaces it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Advice(StrEnum):
    """A part of a sentence that says what to do."""

    on_command_line: str

    def __new__(cls, words: str, on_command_line: str) -> Self:
        """The advice to Python callers, and to users of the command line."""
        made = str.__new__(cls, words)
        made._value_ = words
        made.on_command_line = on_command_line
        return made

    LEARN_ORDER = (
        "read it from the node, or infer it from observed messages",
        "read it from the node (--node), or infer it from observed messages (--pairs, --probe)",
    )
    LEARN_RING = (
        (
            "Read it from the broker (`rabbitmqctl eval` of rabbit_exchange_type_consistent_hash:ring_state/2) and pass it to "
            "Ring.read(), or infer it from observed messages with infer()"
        ),
        (
            "With --url, the options --node, --pairs and --probe learn the order of a broker's ring, and `rabbit-chx export` "
            "writes it into a file; `rabbit-chx ring --infer PAIRS.csv` infers it without a broker"
        ),
    )
    OBSERVE = (
        "infer its order from keys and queues that consumers logged, or read it from the node",
        "pass --pairs with keys and queues that consumers logged, or --node",
    )
    READ_BROKER = (
        "Read a broker with rabbit_chx.broker.read()",
        "The URL of a broker is given with -U or --url",
    )
    NAME_ONCE = ("Use Ring.bind() to mirror a second binding", "Name each queue once")
    TRUST_CA = (
        "pass an ssl.SSLContext that trusts it as tls= (in Spark, its file as tlsCaFile)",
        "pass its file with --tls-ca-cert-file",
    )
    SEND_UNPROTECTED = ("pass insecure=True", "pass --insecure-management")
    SHOW_MORE = ("give management=", "leave out --amqp-only")
    ANSWER_MARKERS = (
        "is a consumer running there that calls pass_marker()?",
        "does a member of a group consume it?",
    )
    DRAIN_OTHERS = (
        "apply the plan with apply(), and keep the order of keys with rabbit_chx.broker.drain_in_order()",
        "use `rabbit-chx apply`, and hold their consumers as its plan says",
    )
    STRATEGY = ("(strategy=)", "(`rabbit-chx apply --strategy`)")
    RAISE_LIMIT = ("raise max_moved=", "raise --max-moved")
    FORCE = ("pass force=True", "use `rabbit-chx apply --force`, which does not drain queues")
    ALLOW_CLAIM = ("allow its exchange in Choice.to", "--to allows its exchange")


def in_options(text: str) -> str:
    """The text with all advice in the options of the command line."""
    for advice in Advice:
        text = text.replace(advice, advice.on_command_line)
    return text
