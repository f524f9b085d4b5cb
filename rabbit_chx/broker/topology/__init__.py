"""Topology as code where it meets a broker: what stands there is read here, and changed here.

``reader`` reads a virtual host into the values of :mod:`rabbit_chx.topology`; ``rings`` decides what is known of the
order of each ring; ``node`` asks a node itself, and ``observe`` watches where messages go.
"""
