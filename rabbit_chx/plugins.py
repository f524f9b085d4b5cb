"""Which plugin of RabbitMQ has which type of exchange. Values only."""

from __future__ import annotations

from typing import Final

__all__ = ["PLUGINS", "why_no_type"]

PLUGINS: Final = {
    "x-consistent-hash": "rabbitmq_consistent_hash_exchange",
    "x-modulus-hash": "rabbitmq_sharding",
    "x-random": "rabbitmq_random_exchange",
    "x-recent-history": "rabbitmq_recent_history_exchange",
    "x-jms-topic": "rabbitmq_jms_topic_exchange",
    "x-rtopic": "rabbitmq_rtopic_exchange",
    "x-delayed-message": "rabbitmq_delayed_message_exchange",
}


def why_no_type(name: str) -> str:
    """What to say where the broker does not know a type of exchange."""
    if name == "x-local-random":
        return "the exchange type 'x-local-random' came with release 4.0"
    if (plugin := PLUGINS.get(name)) is None:
        return f"the broker does not know the exchange type {name!r}: `rabbitmqctl list_exchanges type` shows some"
    return f"the broker does not know the exchange type {name!r}: `rabbitmq-plugins enable {plugin}` on each node"
