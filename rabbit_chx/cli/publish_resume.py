"""The position of ``rabbit-chx publish`` in a file, kept in another file, so that a second call can go on from there."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from pathlib import Path
from typing import Any, Final

from rabbit_chx.cli.ask.row_files import RowBatch
from rabbit_chx.errors import InvalidValue
from rabbit_chx.publishing import Bulk

MAX_SENT_AGAIN: Final = 10_000
"""Rows that are sent again at most when the process is killed."""
_SAVE_ROWS: Final = 9_000
_SAVE_SECONDS: Final = 0.5
_PAUSE: Final = 0.005
_MAX_BYTES: Final = 1 << 16
_NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)


def open_resume_file(path: str | None, file: str) -> AbstractContextManager[ResumeFile | None]:
    """Lock and read the file that holds the position in ``file``; without a path there is none."""
    if path is None:
        return nullcontext()
    if file == "-":
        raise InvalidValue("--resume", "standard input", "a file, which can be read again")
    return closing(ResumeFile(Path(path), file))


class ResumeFile:
    """How many rows of a file are confirmed, in a file that one publisher at a time may use."""

    def __init__(self, path: Path, file: str) -> None:
        self._path = path
        self._file = file
        self._source = _identity(file)
        is_missing = not os.path.lexists(path)
        self._descriptor = _locked(path)
        try:
            # A file that is empty, but not new, has lost its position.
            if is_missing and os.fstat(self._descriptor).st_size == 0:
                self._write(0)
            self.start: int = self._read()
        except BaseException:
            self.close()
            raise
        self._seen = 0
        self.saved, self._saved_at = self.start, time.monotonic()

    def close(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)

    def skip(self, batch: RowBatch) -> RowBatch:
        """Return the batch without the rows that an earlier call confirmed."""
        self._seen = batch.first_row - 1 + len(batch.bodies)
        gone = min(max(self.start - (batch.first_row - 1), 0), len(batch.bodies))
        return batch[gone:] if gone else batch

    def check_end(self) -> None:
        """Check, after the last batch, that the file has as many rows as were confirmed: otherwise all were skipped."""
        if self.start > self._seen:
            hint = f"Remove {self._path} to start from the first row"
            got = f"{self.start} in {self._path}"
            raise InvalidValue(
                "--resume position", got, f"at most the {self._seen} rows of {self._file}", hint
            )

    def keep_up(self, bulk: Bulk, rows: int, stopped: Callable[[], bool]) -> bool:
        """Save the position often enough before more rows are published; wait if confirms lag behind.

        Return False if no more rows may be published: after a stop, and after a row has failed. The position stays at that
        row, so the next call would send all later rows again.
        """
        while bulk.error is None and not (stopped() or bulk.failures):
            ahead = self.start + bulk.totals.published + rows - self.saved
            if ahead < _SAVE_ROWS and time.monotonic() - self._saved_at < _SAVE_SECONDS:
                break
            self.save(bulk)
            ahead = self.start + bulk.totals.published + rows - self.saved
            if ahead <= MAX_SENT_AGAIN:
                break
            time.sleep(_PAUSE)
        return not (stopped() or bulk.failures)

    def save(self, bulk: Bulk) -> None:
        """Save the row before which every row is confirmed."""
        rows = self.start + bulk.confirmed_before
        self._saved_at = time.monotonic()
        if rows == self.saved:
            return
        if _identity(self._file) != self._source:
            got = f"{self._file}, which changed while it was read"
            raise InvalidValue("--resume", got, "a file that does not change")
        self._write(rows)
        self.saved = rows

    def _write(self, rows: int) -> None:
        """Replace the file: a crash, also of the machine, leaves the old file or the new one."""
        folder = self._path.parent
        descriptor, new = tempfile.mkstemp(dir=folder, prefix=f".{self._path.name}.")
        try:
            os.write(descriptor, json.dumps({"rows": rows, "source": self._source}).encode())
            os.fsync(descriptor)  # otherwise the new name may be on disk before the content
            os.lseek(descriptor, 0, os.SEEK_SET)
            _try_lock(descriptor)  # no other process knows the file yet
            Path(new).replace(self._path)
        except BaseException:
            os.close(descriptor)
            with suppress(OSError):
                Path(new).unlink()
            raise
        os.close(self._descriptor)
        self._descriptor = descriptor
        _sync_folder(folder)

    def _read(self) -> int:
        try:
            saved = json.loads(os.read(self._descriptor, _MAX_BYTES))
            rows, source = saved["rows"], saved["source"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            rows = source = None
        hint = f"Remove {self._path} to start from the first row"
        if type(rows) is not int or rows < 0:
            expected = "a file that an earlier --resume wrote"
            raise InvalidValue("--resume file", str(self._path), expected, hint)
        if source != self._source:
            got = f"{self._file}, which has changed (name, size or time)"
            raise InvalidValue("--resume", got, "the same file as before", hint)
        return rows


def _locked(path: Path) -> int:
    """Open a file without following a symbolic link, create it if it is missing, and lock it."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _NO_FOLLOW, 0o600)
        except OSError as error:
            reason = "is a symbolic link" if error.errno == errno.ELOOP else str(error.strerror)
            raise InvalidValue("--resume file", f"{path} ({reason})", "a file that can be written") from None
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            os.close(descriptor)
            raise InvalidValue("--resume file", str(path), "a regular file")
        if not _try_lock(descriptor):
            os.close(descriptor)
            expected = "a file that no other rabbit-chx publish uses"
            raise InvalidValue("--resume file", f"{path} (locked)", expected)
        with suppress(FileNotFoundError):
            if os.path.samestat(state, path.lstat()):
                return descriptor
        os.close(descriptor)  # another publisher replaced the file before the lock


def _try_lock(descriptor: int) -> bool:
    """Lock an open file until it is closed; return whether no other process holds the lock."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sync_folder(folder: Path) -> None:
    """Make sure that the new name of a file is on disk."""
    if sys.platform == "win32":  # which cannot open a folder
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _identity(file: str) -> dict[str, Any]:
    """Return what identifies a version of a file."""
    state = Path(file).stat()
    return {"file": str(Path(file).resolve()), "size": state.st_size, "modified_ns": state.st_mtime_ns}
