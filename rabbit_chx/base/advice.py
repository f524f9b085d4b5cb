"""Advice that is worded twice: here as Python callers follow it, in :mod:`rabbit_chx.cli.show.advice` with the options of the command line.

Errors, notes and findings contain the words below; what the command line prints passes through `in_options`, which replaces them.
"""

from __future__ import annotations

from enum import StrEnum


class Advice(StrEnum):
    """A part of a sentence that says what to do."""

    LEARN_ORDER = "read it from the node, or infer it from observed messages"
    LEARN_RING = (
        "Read it from the broker (`rabbitmqctl eval` of rabbit_exchange_type_consistent_hash:ring_state/2) and pass it to "
        "Ring.read(), or infer it from observed messages with infer()"
    )
    OBSERVE = "infer its order from keys and queues that consumers logged, or read it from the node"
    READ_BROKER = "Read a broker with rabbit_chx.topology.read()"
    NAME_ONCE = "Use Ring.bind() to mirror a second binding"
    TRUST_CA = "pass an ssl.SSLContext that trusts it as tls= (in Spark, its file as tlsCaFile)"
    SEND_UNPROTECTED = "pass insecure=True"
    SHOW_MORE = "give management="
    ANSWER_MARKERS = "is a consumer running there that calls pass_marker()?"
    DRAIN_OTHERS = (
        "apply the plan with apply(), and keep the order of keys with rabbit_chx.broker.drain_in_order()"
    )
    RAISE_LIMIT = "raise max_moved="
    FORCE = "pass force=True"
    ALLOW_CLAIM = "allow its exchange in Choice.to"
