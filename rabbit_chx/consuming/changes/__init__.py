"""Changing the queues of an exchange under load."""
