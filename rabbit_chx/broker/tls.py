"""TLS contexts from the options of the command line and of Spark, and a warning if a context verifies less than it could."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rabbit_chx.errors import InvalidValue

log = logging.getLogger("rabbit_chx.tls")


class _NamedContext(ssl.SSLContext):
    """Expects one name in the certificate instead of the host's name."""

    name = ""

    def wrap_socket(self, sock: socket.socket, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
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
    """Return a client context.

    Args:
        options: the user's names for ``ca_file`` and ``cert_file``, for errors.
        hint: for a certificate or key that cannot be loaded.
        ca_file: CA certificates to trust instead of the system's.
        cert_file: the client certificate, with or without its private key.
        key_file: the private key, if ``cert_file`` does not contain it.
        key_password: of the private key. Without it an encrypted key is an error: OpenSSL would prompt for it.
        server_name: the name that the broker's certificate must have, if it is not the host.
        verify: whether to verify the certificate and the host name.
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
    return _since_tls_1_2(made)


def default_context() -> ssl.SSLContext:
    """Return a context that verifies the certificate, against the system's CAs, and the host name."""
    return _since_tls_1_2(ssl.create_default_context())


def _since_tls_1_2(made: ssl.SSLContext) -> ssl.SSLContext:
    # Debian's Python, and Ubuntu's, leave the minimum to the configuration of OpenSSL.
    made.minimum_version = max(made.minimum_version, ssl.TLSVersion.TLSv1_2)
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
    """Log a warning for a context that does not verify the certificate or the host name."""
    if tls is None:
        return
    if tls.verify_mode is not ssl.CERT_REQUIRED:
        log.warning(
            "SECURITY: the certificate of %s is not verified: any server at that address gets user, password and messages",
            where,
        )
    elif not tls.check_hostname:
        log.warning(
            "SECURITY: the host name of %s is not verified: any certificate of a trusted CA is accepted",
            where,
        )
