"""The connections of reads and writes, with the secrets and files of the machine that opens them."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from rabbit_chx import InvalidValue
from rabbit_chx.base.text import sentences
from rabbit_chx.broker import Management
from rabbit_chx.broker.tls import context as tls_context
from rabbit_chx.errors import StreamUnavailable
from rabbit_chx.publishing import BrokerUrl, Credentials
from rabbit_chx.streams import StreamConnection, StreamReader, connect
from rabbit_chx.streams.protocol.permissions import Access
from spark_connector.connection_options import ConnectionOptions, StreamOptions, without_password

_T = TypeVar("_T")


class NotOnThisMachine(InvalidValue):
    """A secret or a file that this machine lacks, although another may have it."""


# -- the stream protocol ----------------------------------------------------------------------------


def connected(options: StreamOptions, *, stream: str | None = None, leader: bool = False) -> StreamConnection:
    """Connect to the stream port; with ``stream``, to a node that has it."""
    timeout = options.timeouts.connect
    with names_port(options):
        return to_streams(options, connect, stream=stream, leader=leader, timeout=timeout)


def partitions(
    connection: StreamConnection, super_stream: str, access: Access | None = None
) -> Sequence[str]:
    """Return the streams of a super stream, which the broker takes any exchange for; ``access`` explains a refusal."""
    streams = connection.partitions(super_stream, access=access)
    if not streams:
        expected, hint = "an exchange to which a stream is bound", "Bind a stream to it"
        raise InvalidValue("option superStream", super_stream, expected, hint)
    return streams


@contextmanager
def names_port(options: StreamOptions) -> Iterator[None]:
    """Name the option streamPort if no broker answers at the default port."""
    try:
        yield
    except StreamUnavailable as error:
        if error.problem != "unreachable" or options.stream_port is not None or options.follow_advertised:
            raise
        text = sentences(str(error), "The option streamPort names another port")
        raise StreamUnavailable(text, error.problem) from None


def stream_reader(options: StreamOptions, stream: str, **more: Any) -> StreamReader:
    """Prepare a reader of a stream, which tries each connection for ``connectionTimeoutMs``."""
    timeouts = replace(options.timeouts, reconnect=options.timeouts.connect)
    return to_streams(options, StreamReader, stream=stream, timeouts=timeouts, **more)


def to_streams(options: StreamOptions, opened: Callable[..., _T], **more: Any) -> _T:
    """Call ``opened`` with the addresses of the stream protocol, the user and TLS. Return the result."""
    given = {
        "follow_advertised": options.follow_advertised,
        "credentials": credentials_of(options),
        "tls": tls_of(options),
        "connection_name": f"{options.connection_name} driver",
        **more,
    }
    return opened(options.urls, **given)


# -- the management API -----------------------------------------------------------------------------


def management_of(options: ConnectionOptions, url: str | None, broker: BrokerUrl | None = None) -> Management:
    """Return the API at ``url`` (default: on the host of ``broker``, or of the first one), with the connection's user and certificates."""
    tls = tls_of(options) if (url or "https").startswith("https") else None
    broker = broker or options.urls[0]
    return Management.of(broker, url, credentials=credentials_of(options), tls=tls)


# -- secrets and files of this machine --------------------------------------------------------------


def credentials_of(options: ConnectionOptions) -> Credentials | None:
    """The source of a password that is not in the URL; it is read at each connection attempt."""
    if options.password_file is not None:
        return _file(options.password_file, "passwordFile")
    user = options.urls[0].login[0]
    if options.password is not None:
        password = options.password
        return lambda: (user, password)
    if options.password_env is not None:
        name = options.password_env
        if name not in os.environ:
            raise NotOnThisMachine(
                "option passwordEnv",
                f"{without_password(name)}, which is not set on {socket.gethostname()}",
                "an environment variable of the Python workers",
                f"Set it on the executors with spark.executorEnv.{without_password(name)}",
            )
        return lambda: (user, os.environ[name])
    return None


def tls_of(options: ConnectionOptions) -> ssl.SSLContext | None:
    """The context of connections with TLS, from the files on this machine; None without TLS."""
    if not options.urls[0].tls:
        return None
    return tls_context(
        options=("option tlsCaFile", "option tlsCertFile"),
        hint="tlsKeyPassword opens an encrypted key; openssl x509 -in FILE -text shows a certificate",
        ca_file=_file(options.tls_ca_file, "tlsCaFile"),
        cert_file=_file(options.tls_cert_file, "tlsCertFile"),
        key_file=_file(options.tls_key_file, "tlsKeyFile"),
        key_password=options.tls_key_password or "",
        server_name=options.tls_server_name,
        verify=options.tls_verify,
    )


def _file(path: str | None, option: str) -> Path | None:
    """A file on this machine, or one that Spark has distributed (``--files``, ``addFile``, ``addArtifacts``)."""
    from pyspark import SparkFiles

    if path is None:
        return None
    candidates = [Path(path)]
    with suppress(Exception):  # outside Spark there is no folder of distributed files
        candidates.append(Path(SparkFiles.get(path)))
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    path = without_password(path)
    raise NotOnThisMachine(
        f"option {option}",
        f"{path}, which is not on {socket.gethostname()}",
        "a file on every executor, or the name of a file that Spark distributes",
        f"Distribute it with spark-submit --files {path} or spark.sparkContext.addFile({path!r}), and give only its name",
    )
