"""Connect to the broker as a write or a read of streams does, for ``rabbit-chx doctor --spark``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spark_connector.reading.options import ONLY_OF_WRITES, ReadOptions
from spark_connector.reading.stream_access import StreamAccess, open_reader
from spark_connector.writing.options import WriteOptions
from spark_connector.writing.publishers import borrow, check_streams, check_target, discard

_OF_STREAMS: Final = {"stream", "superstream", "streamport", "followadvertised"}


def is_read(options: Mapping[str, str]) -> bool:
    """Whether to check a read: an option is about streams, and no option is only for writes."""
    names = {name.lower() for name in options}
    return bool(_OF_STREAMS & names) and not ONLY_OF_WRITES & names


def parsed(options: Mapping[str, str]) -> WriteOptions | ReadOptions:
    """Parse the options of a read of streams, or of a write."""
    return ReadOptions.of(options) if is_read(options) else WriteOptions.of(options)


def from_driver(options: WriteOptions | ReadOptions) -> str:
    """Connect as the driver does. Return a description of the target."""
    if isinstance(options, ReadOptions):
        return _read(options)
    check_target(options)
    return _target(options)


def from_executor(options: WriteOptions | ReadOptions) -> str:
    """Connect as a task does. Return a description of the target."""
    if isinstance(options, ReadOptions):
        return _read(options)
    if options.to_streams:
        check_streams(options)
    else:
        discard(borrow(options, f"{options.connection_name} doctor"))
    return _target(options)


def _target(options: WriteOptions) -> str:
    return f"{options.where}, write to streams" if options.to_streams else options.where


def _read(options: ReadOptions) -> str:
    """Find the streams. Open a reader of the first stream."""
    with StreamAccess(options) as access:
        names = access.chosen()
        access.bounds(names)
    if names:
        with open_reader(options, names[0], ("offset",), f"{options.connection_name} doctor"):
            pass
    return f"{options.where}, read of streams: {len(names)}"
