"""Connections of a Python worker: at most one for each set of options, kept from task to task, closed when idle.

Spark reuses its Python workers, each for one task at a time. A stateful stream runs hundreds of small tasks a
minute; a connection for each would keep the broker busy with handshakes alone. The publisher's own thread keeps
a kept connection alive, and reconnects it. Secrets are read here, where the connection is made, and no earlier.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx import publishing
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, RabbitChxError
from rabbit_chx.publishing import Publisher, Timeouts, tls_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable

    from rabbit_chx.publishing import Credentials
    from spark_connector.options import Options

__all__ = ["AbsentHere", "borrow", "check_access", "discard", "give_back"]

_IDLE_SECONDS: Final = 30.0
"""Less than the minute after which Spark kills an idle worker, so that the broker sees a connection end well."""
_FLUSH_SECONDS: Final = 1.0
_REUSED: Final = "SPARK_REUSE_WORKER"
"""Set by Spark where a worker lives on after its task."""


class AbsentHere(InvalidValue):
    """A secret or a file that is not on this machine, though it may be on another."""


# -- one for each worker ----------------------------------------------------------------------------

_kept: dict[tuple[Any, ...], tuple[Publisher, threading.Timer]] = {}
_guard = threading.Lock()


def borrow(options: Options, name: str) -> Publisher:
    """An open publisher: the one that is kept, if it still works, or a new one, which bears the name."""
    with _guard:
        publisher, timer = _kept.pop(options.connection, (None, None))
    if publisher is not None and timer is not None:
        timer.cancel()
        if publisher.error is None:
            return publisher
        discard(publisher)
    publisher = _publisher(options, name)
    publisher.open()
    return publisher


def give_back(options: Options, publisher: Publisher) -> None:
    """Keep a publisher of which every message is confirmed, until it was idle for a while."""
    if not os.environ.get(_REUSED):
        publisher.close()
        return
    timer = threading.Timer(_IDLE_SECONDS, _close_idle, [options.connection, publisher])
    timer.daemon = True
    with _guard:
        _kept[options.connection] = (publisher, timer)
    timer.start()


def _close_idle(key: tuple[Any, ...], publisher: Publisher) -> None:
    with _guard:
        if _kept.get(key, (None, None))[0] is not publisher:
            return
        del _kept[key]
    discard(publisher)


def discard(publisher: Publisher) -> None:
    """Close a publisher, whatever became of its messages: that was reported, or is about to be."""
    with suppress(RabbitChxError):
        publisher.close(timeout=_FLUSH_SECONDS)


def _publisher(options: Options, name: str) -> Publisher:
    return Publisher(
        options.urls,
        properties=None if options.persistent else {"delivery_mode": 1},
        max_in_flight=options.max_in_flight,
        max_message_bytes=options.max_message_bytes,
        timeouts=Timeouts(
            connect=options.connection_timeout_ms / 1000,
            reconnect=options.reconnect_timeout_ms / 1000,
            retry=options.retry_timeout_ms / 1000,
            confirm=options.confirm_timeout_ms / 1000,
            blocked=options.blocked_timeout_ms / 1000,
        ),
        heartbeat=options.heartbeat_seconds,
        credentials=_credentials(options),
        tls=_tls(options),
        name=name,
    )


# -- what stands on this machine only ---------------------------------------------------------------


def _credentials(options: Options) -> Credentials | None:
    """Where the password comes from, if it is not in the URL; read anew on each connect."""
    if options.password_file is not None:
        return _file(options.password_file, "passwordFile")
    user = options.urls[0].login[0]
    if options.password is not None:
        password = options.password
        return lambda: (user, password)
    if options.password_env is not None:
        name = options.password_env
        if name not in os.environ:
            raise AbsentHere(
                "the option passwordEnv",
                got=f"{name}, which is not set on {socket.gethostname()}",
                expected="an environment variable of the Python workers",
                hint=f"Set it on the executors: spark.executorEnv.{name}",
            )
        return lambda: (user, os.environ[name])
    return None


def _tls(options: Options) -> ssl.SSLContext | None:
    """The context of the TLS options; None where there are none to speak of, which checks everything."""
    if not options.urls[0].tls:
        return None
    return tls_context(
        options=("the option tlsCaFile", "the option tlsCertFile"),
        hint="tlsKeyPassword opens a key that is encrypted; openssl x509 -in FILE -text shows a certificate",
        ca_file=_file_or_none(options.tls_ca_file, "tlsCaFile"),
        cert_file=_file_or_none(options.tls_cert_file, "tlsCertFile"),
        key_file=_file_or_none(options.tls_key_file, "tlsKeyFile"),
        key_password=options.tls_key_password or "",
        server_name=options.tls_server_name,
        verify=options.tls_verify,
    )


def _file_or_none(path: str | None, option: str) -> Path | None:
    return None if path is None else _file(path, option)


def _file(path: str, option: str) -> Path:
    """A file on this machine, or one that Spark has brought here (``--files``, ``addFile``, ``addArtifacts``)."""
    from pyspark import SparkFiles

    candidates = [Path(path)]
    with suppress(Exception):  # where there is no Spark there is no folder of its files either
        candidates.append(Path(SparkFiles.get(path)))
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise AbsentHere(
        f"the option {option}",
        got=f"{path}, which is not on {socket.gethostname()}",
        expected="a file on every executor, or the name of one that Spark distributes",
        hint=f"Distribute it with spark-submit --files {path} or spark.sparkContext.addFile({path!r}), and give only its name",
    )


# -- may it be written? -----------------------------------------------------------------------------


def check_access(options: Options, exchanges: Iterable[str]) -> None:
    """Connect as the write will, and check that the user may publish to these exchanges. Nothing is published."""
    try:
        publishing.check_access(
            options.urls,
            exchanges,
            name=f"{options.connection_name} check",
            timeout=options.connection_timeout_ms / 1000,
            credentials=_credentials(options),
            tls=_tls(options),
        )
    except AbsentHere:
        raise
    except InvalidValue as error:
        hint = f"{error.hint}; checkExchange=false skips this check"
        raise InvalidValue(error.what, error.got, error.expected, hint) from None
    except BrokerUnavailable as error:
        raise BrokerUnavailable(
            f"{error}; if only executors can reach the broker, set checkExchange=false"
        ) from None
