"""Connect reads and writes to the broker's management API."""

from __future__ import annotations

from rabbit_chx.topology import Management
from spark_connector.connections import credentials_of, tls_of
from spark_connector.options import ConnectionOptions


def management_of(options: ConnectionOptions, url: str | None) -> Management:
    """Return the API at ``url`` (default: on the broker's host), with the connection's user and certificates."""
    tls = tls_of(options) if (url or "https").startswith("https") else None
    return Management.of(options.urls[0], url, credentials=credentials_of(options), tls=tls)
