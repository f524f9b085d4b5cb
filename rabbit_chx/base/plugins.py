"""Which plugin of RabbitMQ has which type of exchange. Values only."""

from __future__ import annotations

import re
from typing import Final

# The first two are the words for a declaration, the third those for a publisher when the plugin is disabled.
_UNKNOWN = re.compile(
    r"(?:unknown|invalid) exchange type '(.*)'|exchange type (\S+) not found", re.DOTALL
).search

_PLUGINS: Final = {
    "x-consistent-hash": "rabbitmq_consistent_hash_exchange",
    "x-modulus-hash": "rabbitmq_sharding",
    "x-random": "rabbitmq_random_exchange",
    "x-recent-history": "rabbitmq_recent_history_exchange",
    "x-jms-topic": "rabbitmq_jms_topic_exchange",
    "x-rtopic": "rabbitmq_rtopic_exchange",
    "x-delayed-message": "rabbitmq_delayed_message_exchange",
}


def why_no_type(name: str) -> str:
    """The reason why a broker does not know an exchange type, with a hint."""
    if name == "x-local-random":
        return "the exchange type 'x-local-random' came with release 4.0"
    plugin = _PLUGINS.get(name)
    hint = f"`rabbitmq-plugins enable {plugin}` on each node" if plugin else "no plugin of RabbitMQ has it"
    return f"the broker does not know the exchange type {name!r}: {hint}"


def why_refused_type(words: str) -> str:
    """The same for a broker's refusal; empty if it is about something else."""
    found = _UNKNOWN(words)
    return why_no_type(found[1] or found[2]) if found else ""
