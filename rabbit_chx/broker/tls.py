"""TLS contexts from files and switches, for the command line and for Spark, and a warning for any that checks nothing.

Certificate and host name are checked wherever nobody has said otherwise. This file opens no socket.
"""

from __future__ import annotations

import logging
import ssl
from typing import TYPE_CHECKING, Any

from rabbit_chx.errors import InvalidValue

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["context", "warn_if_unchecked"]

log = logging.getLogger("rabbit_chx.tls")


class _NamedContext(ssl.SSLContext):
    """Expects one name in the certificate, whatever host is connected to."""

    name = ""

    def wrap_socket(self, sock: socket.socket, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        """As ever, with the expected name."""
        return super().wrap_socket(sock, *args, **kwargs | {"server_hostname": self.name})


def context(
    *,
    options: tuple[str, str],
    hint: str,
    ca_file: Path | None = None,
    cert_file: Path | None = None,
    key_file: Path | None = None,
    key_password: str = "",
    server_name: str | None = None,
    verify: bool = True,
) -> ssl.SSLContext:
    """A context that trusts the authorities of ``ca_file`` (else the system's), and shows a certificate if there is one.

    Args:
        options: what the user calls ``ca_file`` and ``cert_file``.
        hint: for a certificate or key that cannot be loaded.
        ca_file: who may vouch for the broker.
        cert_file: the client's own certificate, maybe with its key.
        key_file: the key, where it is in a file of its own.
        key_password: of the key. Without one an encrypted key is an error: OpenSSL would ask on the terminal.
        server_name: what the broker's certificate must name, where that is not the host.
        verify: without, any certificate is taken.
    """
    made: ssl.SSLContext = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if server_name is not None:
        made = _NamedContext(ssl.PROTOCOL_TLS_CLIENT)
        made.name = server_name
    if not verify:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    elif ca_file is None:
        made.load_default_certs()
    else:
        _load(lambda: made.load_verify_locations(ca_file), options[0], ca_file, hint)
    if cert_file is not None:
        _load(lambda: made.load_cert_chain(cert_file, key_file, key_password), options[1], cert_file, hint)
    return made


def _load(load: Callable[[], None], option: str, path: Path, hint: str) -> None:
    try:
        load()
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
        raise InvalidValue(
            option,
            f"{path} ({reason})",
            "a file with certificates or keys in PEM format",
            hint,
        ) from None


def warn_if_unchecked(tls: ssl.SSLContext | None, where: str) -> None:
    """Say so in the log where a context leaves open who answers: somebody has switched that off on purpose."""
    if tls is None:
        return
    if tls.verify_mode is not ssl.CERT_REQUIRED:
        log.warning(
            "SECURITY: the certificate of %s is not checked: whoever answers there sees user, password and messages",
            where,
        )
    elif not tls.check_hostname:
        log.warning(
            "SECURITY: the host name of %s is not checked: every certificate of a trusted authority passes there",
            where,
        )
