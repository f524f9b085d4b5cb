"""How far ``rabbit-chx publish`` came with a file: kept beside it, so that a second call goes on there."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.cli.row_files import Batch
from rabbit_chx.errors import InvalidValue

if TYPE_CHECKING:
    from rabbit_chx.errors import PublishFailed

__all__ = ["Position"]

_CHECKPOINT_SECONDS: Final = 5.0


@dataclass
class Position:
    """How far a file was published, kept in a file of its own."""

    path: Path | None
    source: dict[str, Any]
    start: int = 0
    _saved_at: float = 0.0

    @classmethod
    def of(cls, path: str | None, file: str) -> Position:
        """The position that was kept, or the beginning; a source that changed meanwhile is an error."""
        if path is None:
            return cls(None, {})
        if file == "-":
            raise InvalidValue("--resume", "standard input", "a file, which can be read again")
        source = _identity(file)
        kept = Path(path)
        if not kept.exists():
            return cls(kept, source)
        try:
            saved = json.loads(kept.read_text())
            start, saved_source = int(saved["rows"]), saved["source"]
        except (OSError, ValueError, KeyError, TypeError):
            raise InvalidValue(
                "--resume",
                path,
                "a file that an earlier --resume wrote",
                "Remove it to begin anew",
            ) from None
        if saved_source != source:
            raise InvalidValue(
                "--resume",
                f"{file}, which is not the file it was (name, size or time differ)",
                "the same file",
                f"Remove {path} to begin anew",
            )
        return cls(kept, source, start)

    def skip(self, batch: Batch) -> Batch:
        """The batch without rows that were confirmed earlier."""
        gone = min(max(self.start - (batch.first_row - 1), 0), len(batch.bodies))
        if not gone:
            return batch
        return Batch(
            batch.bodies[gone:],
            batch.keys if isinstance(batch.keys, str) else batch.keys[gone:],
            None if batch.headers is None else batch.headers[gone:],
            {name: values[gone:] for name, values in batch.properties.items()},
            batch.first_row + gone,
        )

    @property
    def is_due(self) -> bool:
        """Whether it is time to keep it again."""
        return self.path is not None and time.monotonic() - self._saved_at > _CHECKPOINT_SECONDS

    def save_before(self, failed: PublishFailed) -> None:
        """Keep the position before the first row that was not confirmed."""
        if failed.failures:
            self.save(self.start + failed.failures[0].row)

    def save(self, rows: int) -> None:
        """Keep the position behind so many rows, in one step that a crash cannot split."""
        if self.path is None:
            return
        if _identity(self.source["file"]) != self.source:
            raise InvalidValue(
                "--resume",
                f"{self.source['file']}, which changed while it was read",
                "a file at rest",
            )
        new = self.path.with_name(self.path.name + ".new")
        new.write_text(json.dumps({"rows": rows, "source": self.source}))
        new.replace(self.path)
        self._saved_at = time.monotonic()


def _identity(file: str) -> dict[str, Any]:
    """By what a file is known again."""
    try:
        state = Path(file).stat()
    except OSError as error:
        raise InvalidValue("file", file, "a readable file", str(error.strerror)) from None
    return {"file": str(Path(file).resolve()), "size": state.st_size, "modified_ns": state.st_mtime_ns}
