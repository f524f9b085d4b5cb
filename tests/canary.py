"""Secrets that are easy to find again, whoever has written them and in whatever form."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from urllib.parse import quote, quote_plus
from uuid import uuid4


def canary(name: str) -> str:
    """A secret that says which one it is."""
    return f"CANARY-{name}-{uuid4().hex[:8]}"


def forms(secret: str) -> set[str]:
    """A secret as it may stand in a text: as it is, as URLs and reprs have it, and within Base64."""
    data = secret.encode()
    # What stands before it decides at which of three places it begins; the characters that it shares are left out.
    coded = {
        b64encode(b"x" * before + data).decode()[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]
        for before in range(3)
    }
    return {secret, quote(secret, safe=""), quote_plus(secret), repr(secret)[1:-1], data.hex(), *coded}


def found(text: str, secrets: Iterable[str]) -> list[str]:
    """Each secret that stands in the text in one form or another, with what stands before it."""
    written = (form for secret in secrets for form in sorted(forms(secret)))
    return [text[max(text.index(form) - 200, 0) :][:250] for form in written if form in text]
