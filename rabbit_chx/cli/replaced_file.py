"""A file that a command replaces as a whole, because another program may read it at any time."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from rabbit_chx.errors import InvalidValue

_READABLE_BY_ALL: Final = 0o644


def replace_file(path: str, text: str, *, option: str) -> None:
    """Replace the text of a file at once; a new one can be read by other users, too.

    A symbolic link stays, and what it points to is replaced. A pipe or a device is written to.
    """
    try:
        given = Path(path)
        if given.exists() and not given.is_file():
            given.write_text(text, encoding="utf-8")
        else:
            _replace(Path(os.path.realpath(given)), text)
    except OSError as error:
        hint = f"The system says: {error.strerror}"
        raise InvalidValue(option, path, "a file that can be written", hint) from None


def _replace(target: Path, text: str) -> None:
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else _READABLE_BY_ALL
    descriptor, new = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(new).chmod(mode)
        Path(new).replace(target)
    except BaseException:
        with suppress(OSError):
            Path(new).unlink()
        raise
