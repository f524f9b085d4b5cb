"""What the fast paths for publishing and for deliveries use of pika's connection beyond its documentation.

A test checks the installed pika for these names. If one is missing, pika does all the work, which is slower. Deliveries also need
`_add_pending_event` of its `BlockingChannel`, and arrive in larger pieces if its transport has `_MAX_RECV_BYTES`.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from pika import SelectConnection

PRIVATE_NAMES: Final = (
    *(
        "_on_data_available",
        "_read_frame",
        "_process_frame",
        "_trim_frame_buffer",
        "_frame_buffer",
        "_channels",
    ),
    *("_adapter_emit_data", "_transport", "_error"),
    *("bytes_received", "frames_received", "bytes_sent", "frames_sent"),
)


def has_private_names(names: Container[str]) -> bool:
    """Whether these names of pika's connection include all that the fast paths need."""
    return all(name in names for name in PRIVATE_NAMES)


def can_be_fast(connection: SelectConnection) -> bool:
    """Whether the installed pika has all names; of its methods only its own count, which our connections override."""
    return has_private_names({*vars(connection), *dir(SelectConnection)})
