"""Connect to the broker as a write or a read of streams does, for ``rabbit-chx doctor --spark``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Final

from rabbit_chx import InvalidValue, RabbitChxError
from spark_connector.connection_options import targets_in
from spark_connector.connections import stream_reader
from spark_connector.reading.options import ONLY_OF_READS, ONLY_OF_WRITES, ReadOptions
from spark_connector.reading.stream_access import StreamAccess
from spark_connector.writing.options import WriteOptions
from spark_connector.writing.publishers import borrow, check_streams, check_target, discard

_OF_STREAMS: Final = {"stream", "superstream", "streamport", "followadvertised"}


def is_read(options: Mapping[str, str]) -> bool:
    """Whether to check a read: an option is about streams, and no option is only for writes."""
    names = {name.lower() for name in options}
    return bool(_OF_STREAMS & names) and not ONLY_OF_WRITES & names


def parsed(options: Mapping[str, str]) -> WriteOptions | ReadOptions:
    """Parse the options of a read of streams, or of a write."""
    if "queue" in targets_in(options):
        hint = "Leave it out: then the connection is checked, but not the queue"
        raise InvalidValue("option for doctor", "queue", "an option of a write or of a read of streams", hint)
    return ReadOptions.of(options) if is_read(options) else WriteOptions.of(options)


def reached(options: Mapping[str, str], *, in_task: bool) -> str:
    """Connect as a task or as the driver does. Return a description of the target."""
    found = parsed(options)
    if isinstance(found, ReadOptions):
        return _read(found) + _write_too(options, found)
    if in_task and not found.to_streams:
        discard(borrow(found, f"{found.connection_name} doctor"))
    else:
        check_target(found)
    return f"{found.where}, write to streams" if found.to_streams else found.where


def _write_too(options: Mapping[str, str], read: ReadOptions) -> str:
    """Also try a write if the options of a read fit one. Its failure is no fault: the user may only read."""
    one_target = read.super_stream is not None or (read.stream is not None and len(read.stream) == 1)
    if not one_target or ONLY_OF_READS & {name.lower() for name in options}:
        return ""
    try:
        check_streams(WriteOptions.of(options))
    except RabbitChxError as error:
        return f"; a write would fail: {error}"
    return ", and write to streams"


def _read(options: ReadOptions) -> str:
    """Find the streams. Open a reader of the first stream."""
    with closing(StreamAccess(options)) as access:
        names = access.chosen()
        access.bounds(names)
    if names:
        with stream_reader(options, names[0], connection_name=f"{options.connection_name} doctor"):
            pass
    return f"{options.where}, read of streams: {len(names)}"
