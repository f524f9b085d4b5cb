"""Advice in the options of the command line, for all that it prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rabbit_chx.base.advice import Advice

OPTIONS: Final[Mapping[Advice, str]] = {
    Advice.LEARN_ORDER: "read it from the node (--node), or infer it from observed messages (--pairs, --probe)",
    Advice.LEARN_RING: (
        "With --url, the options --node, --pairs and --probe learn the order of a broker's ring, and `rabbit-chx export` "
        "writes it into a file; `rabbit-chx ring --infer PAIRS.csv` infers it without a broker"
    ),
    Advice.OBSERVE: "pass --pairs with keys and queues that consumers logged, or --node",
    Advice.READ_BROKER: "The URL of a broker is given with -U or --url",
    Advice.NAME_ONCE: "Name each queue once",
    Advice.TRUST_CA: "pass its file with --tls-ca-cert-file",
    Advice.SEND_UNPROTECTED: "pass --insecure-management",
    Advice.SHOW_MORE: "leave out --amqp-only",
    Advice.ANSWER_MARKERS: "does a member of a group consume it?",
    Advice.DRAIN_OTHERS: "use `rabbit-chx apply`, and hold their consumers as its plan says",
    Advice.RAISE_LIMIT: "raise --max-moved",
    Advice.ALLOW_CLAIM: "--to allows its exchange",
    Advice.FORCE: "use `rabbit-chx apply --force`",
}


def in_options(text: str) -> str:
    """The text with all advice in the options of the command line."""
    for advice, words in OPTIONS.items():
        text = text.replace(advice.value, words)
    return text
