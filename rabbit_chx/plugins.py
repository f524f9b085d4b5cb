"""Which plugin of RabbitMQ has which type of exchange. Values only."""

from __future__ import annotations

from typing import Final

__all__ = ["why_no_type"]

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
