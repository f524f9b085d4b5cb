"""Topology as code: what should be on a broker, what is, the steps between the two and what they cost.

``model`` holds the words, ``steps`` the changes. ``load`` and ``dump`` are files, ``definitions`` is RabbitMQ's own
format. ``lint`` judges; ``plan`` and ``ways`` choose the steps, ``advice`` answers without a broker; ``drift``
compares, and ``metrics`` writes that down. ``routes`` walks a message through all of it, ``sharding`` knows the sharding
plugin. Nothing here opens a socket: that is :mod:`rabbit_chx.broker`'s.
"""
