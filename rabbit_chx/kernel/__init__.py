"""Erlang's arithmetic in Python: integers, bytes and terms only.

This room knows nothing of AMQP, releases or brokers. Each function carries the name of the Erlang
function that it mirrors, and that function's name and file stand above it.
"""

from __future__ import annotations

from rabbit_chx.kernel.jump import jump_consistent_hash
from rabbit_chx.kernel.phash2 import phash2
from rabbit_chx.kernel.terms import Atom, Term

__all__ = ["Atom", "Term", "jump_consistent_hash", "phash2"]
