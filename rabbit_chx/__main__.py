"""``python -m rabbit_chx`` is ``rabbit-chx``."""

from __future__ import annotations

from rabbit_chx.cli import main

main()
