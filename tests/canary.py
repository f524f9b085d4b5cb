"""Secrets that are easy to find in any text, whatever their form."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from urllib.parse import quote, quote_plus
from uuid import uuid4


def canary(name: str) -> str:
    """A secret that contains its name."""
    return f"CANARY-{name}-{uuid4().hex[:8]}"


def forms(secret: str) -> set[str]:
    """The forms of a secret in a text: as it is, in URLs and reprs, and within Base64."""
    data = secret.encode()
    # In Base64 a secret may begin at three offsets; characters that it shares with its neighbours are left out.
    coded = {
        b64encode(b"x" * before + data).decode()[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]
        for before in range(3)
    }
    return {secret, quote(secret, safe=""), quote_plus(secret), repr(secret)[1:-1], data.hex(), *coded}


def found(text: str, secrets: Iterable[str]) -> list[str]:
    """Each secret that the text contains in any form, with the text before it."""
    written = (form for secret in secrets for form in sorted(forms(secret)))
    return [text[max(text.index(form) - 200, 0) :][:250] for form in written if form in text]
