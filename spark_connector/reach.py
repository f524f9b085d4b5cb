"""Reach the broker as a write or a read of streams does, for ``rabbit-chx doctor --spark``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spark_connector.connections import borrow, check_access, discard
from spark_connector.options import WriteOptions
from spark_connector.read_options import ReadOptions
from spark_connector.stream_access import StreamAccess, open_reader

_OF_READS: Final = {"stream", "superstream", "streamport", "followadvertised"}


def is_read(options: Mapping[str, str]) -> bool:
    """Whether to check a read of streams: an option names streams or how to reach them."""
    return bool(_OF_READS & {name.lower() for name in options})


def parsed(options: Mapping[str, str]) -> WriteOptions | ReadOptions:
    """Parse the options of a read of streams, or of a write."""
    return ReadOptions.of(options) if is_read(options) else WriteOptions.of(options)


def from_driver(options: WriteOptions | ReadOptions) -> str:
    """Connect as the driver does, and describe the target."""
    if isinstance(options, ReadOptions):
        return _streams(options)
    check_access(options, [] if options.exchange is None else [options.exchange])
    return options.where


def from_executor(options: WriteOptions | ReadOptions) -> str:
    """Connect as a task does, and describe the target."""
    if isinstance(options, ReadOptions):
        return _streams(options)
    discard(borrow(options, f"{options.connection_name} doctor"))
    return options.where


def _streams(options: ReadOptions) -> str:
    """Find the streams, and open a reader of the first one."""
    with StreamAccess(options) as access:
        names = access.chosen()
        access.bounds(names)
    if names:
        open_reader(options, names[0], ("offset",), f"{options.connection_name} doctor").close()
    return f"{options.where}, streams: {len(names)}"
