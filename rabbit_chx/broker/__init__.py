"""Connections to a broker: AMQP, the management API, permissions, reading a topology and applying a plan."""
