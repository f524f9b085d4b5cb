"""Rows of files as columns to publish, and what `rabbit-chx publish` refuses before it connects."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import signal
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pyarrow import parquet

from rabbit_chx.cli.ask.row_files import Picker, RowBatch, format_of, read_batches
from rabbit_chx.cli.publish_resume import MAX_SENT_AGAIN, ResumeFile, open_resume_file
from rabbit_chx.errors import InvalidValue
from rabbit_chx.publishing import Failure, Outcome, Totals
from tests.amqp_server import AmqpServer
from tests.verbs import started

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

ROWS = [{"id": f"m{i}", "customer": f"ключ-{i}", "amount": str(i)} for i in range(12_001)]


def as_csv() -> bytes:
    lines = ["id,customer,amount", *(",".join(row.values()) for row in ROWS)]
    return "\n".join(lines).encode()


def as_jsonl() -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)


def as_arrow(opener: Any) -> bytes:
    buffer, table = io.BytesIO(), pa.Table.from_pylist(ROWS)
    with opener(buffer, table.schema) as writer:
        writer.write_table(table)
    return buffer.getvalue()


FILES = {
    "csv": ("csv", as_csv),
    "csv with a byte order mark": ("csv", lambda: b"\xef\xbb\xbf" + as_csv()),
    "jsonl": ("jsonl", as_jsonl),
    "jsonl with a byte order mark": ("jsonl", lambda: b"\xef\xbb\xbf" + as_jsonl()),
    "parquet": ("parquet", lambda: as_arrow(parquet.ParquetWriter)),
    "arrow file": ("arrow", lambda: as_arrow(pa.ipc.new_file)),
    "arrow stream": ("arrow", lambda: as_arrow(pa.ipc.new_stream)),
}


def read(kind: str, data: bytes, picker: Picker) -> list[RowBatch]:
    source = read_batches(io.BufferedReader(io.BytesIO(data)), kind, "rows")  # type: ignore[arg-type]
    return list(picker.batches(source, "rows"))


@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_same_columns(name: str) -> None:
    kind, data = FILES[name]
    picker = Picker("amount", "customer", {"h": "id"}, {"message_id": "id"})
    batches = read(kind, data(), picker)
    assert len(batches) > 1
    assert [body for batch in batches for body in batch.bodies] == [row["amount"].encode() for row in ROWS]
    assert [key for batch in batches for key in batch.keys] == [row["customer"] for row in ROWS]
    headers = [header for batch in batches for header in batch.headers or []]
    assert headers == [{"h": row["id"]} for row in ROWS]
    assert [one for batch in batches for one in batch.properties["message_id"]] == [row["id"] for row in ROWS]
    whole_rows = read(kind, data(), Picker())[0].bodies  # without a column for the body
    assert [json.loads(body.decode()) for body in whole_rows[:3]] == ROWS[:3]


def test_a_whole_row_is_json_that_every_program_can_read() -> None:
    row = {"text": b"ok", "price": Decimal("1.50"), "at": datetime(2026, 1, 2, tzinfo=UTC), "none": None}
    buffer, table = io.BytesIO(), pa.Table.from_pylist([row])
    with pa.ipc.new_stream(buffer, table.schema) as writer:
        writer.write_table(table)
    (body,) = read("arrow", buffer.getvalue(), Picker())[0].bodies
    assert json.loads(body) == {
        "text": "ok",
        "price": "1.50",
        "at": "2026-01-02 00:00:00+00:00",
        "none": None,
    }


@pytest.mark.parametrize("value", [b"\xff\x00", math.nan, math.inf, [1.0, math.nan]], ids=str)
def test_a_value_that_json_lacks_is_refused_with_its_row(value: object) -> None:
    buffer, table = io.BytesIO(), pa.table({"id": ["a", "b"], "value": [None, value]})
    with pa.ipc.new_stream(buffer, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(InvalidValue, match=r"row 2 of rows.*--body-column"):
        read("arrow", buffer.getvalue(), Picker())


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        ("csv", b"a,b\n1,2\n3\n", "row 2 of rows"),
        ("csv", b"a,a\n1,2\n", "unique column names"),
        ("csv", b'a\n"open\n', "line 2 of rows"),
        ("csv", b"a\n\xff\n", "UTF-8"),
        (
            "jsonl",
            b'{"a": "x"}\n{"a" 1}\n',
            "line 2 of rows: got a syntax error .* in column 6, expected one JSON",
        ),
        ("jsonl", b"[1]\n", "JSON object"),
        ("parquet", b"no parquet at all", "Parquet"),
        ("arrow", b"no arrow at all", "Arrow"),
        ("jsonl", b'{"a": "x"}\n{"a": 5}\n', "invalid column 'a' in row 2 of rows: got 'int'"),
        ("jsonl", b'{"a": "x"}\n{"b": "y"}\n', "invalid column 'a' in row 2 of rows: got 'null'"),
        ("csv", b"aa,b\n1,2\n", "Did you mean 'aa'"),
        ("csv", b"a,b\n", "invalid rows: got 'no rows'"),
    ],
)
def test_an_invalid_row_is_named_with_what_is_expected(kind: str, data: bytes, expected: str) -> None:
    with pytest.raises(InvalidValue, match=expected):
        read(kind, data, Picker(key="a"))


def test_the_format_follows_from_the_name_or_an_option() -> None:
    assert format_of("x.PARQUET", None) == "parquet"
    assert format_of("-", "csv") == "csv"
    with pytest.raises(InvalidValue, match="--format"):
        format_of("-", None)


def test_a_position_skips_exactly_the_confirmed_rows() -> None:
    batch = RowBatch([b"1", b"2", b"3"], ["a", "b", "c"], [{}, {}, {}], {"type": [1, 2, 3]}, first_row=4)
    for start, left in ((0, 3), (3, 3), (4, 2), (6, 0), (9, 0)):
        assert len(ResumeFile.skip(SimpleNamespace(start=start), batch).bodies) == left
    skipped = ResumeFile.skip(SimpleNamespace(start=5), batch)
    assert skipped == RowBatch([b"3"], ["c"], [{}], {"type": [3]}, first_row=6)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "rows.csv"
    file.write_text("a\n1\n")
    return file


def confirmed(count: int) -> Any:
    return SimpleNamespace(confirmed_before=count)


@contextmanager
def resuming(path: Path, file: Path) -> Iterator[ResumeFile]:
    with open_resume_file(str(path), str(file)) as resume:
        assert resume
        yield resume


def position_of(path: Path, file: Path) -> int:
    with resuming(path, file) as resume:
        return resume.start


def test_a_position_is_read_back_while_its_file_is_the_same(rows: Path, tmp_path: Path) -> None:
    kept = tmp_path / "position"
    assert position_of(kept, rows) == position_of(kept, rows) == 0
    with resuming(kept, rows) as resume:
        resume.save(confirmed(1))
    assert position_of(kept, rows) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"rows.csv", "position"}
    with resuming(kept, rows) as resume:
        rows.write_text("a\n1\n2\n")
        with pytest.raises(InvalidValue, match="changed while it was read"):
            resume.save(confirmed(1))
    with pytest.raises(InvalidValue, match="which has changed"):
        position_of(kept, rows)


@pytest.mark.parametrize(
    "content",
    ["", "\0" * 40, '{"rows": 5', "[]", '{"rows": 1e999}', '{"rows": -1}', '{"rows": true}', "[" * 60_000],
)
def test_a_resume_file_of_another_content_is_refused(content: str, rows: Path, tmp_path: Path) -> None:
    kept = tmp_path / "position"
    kept.write_text(content.replace("}", ', "source": {}}'))
    with pytest.raises(InvalidValue, match="to start from the first row"):
        position_of(kept, rows)


def test_a_position_is_on_disk_before_its_file_replaces_the_old_one(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, done = tmp_path / "position", []
    sync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        sync(descriptor)
        found = Path(f"/dev/fd/{descriptor}")
        done.append("folder" if found.is_dir() else json.loads(found.read_text())["rows"])

    def replaced(path: Path, target: Path) -> Path:
        done.append("replaced")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    with resuming(kept, rows) as resume:
        assert done == [0, "replaced", "folder"]
        resume.save(confirmed(1))
        assert done[3:] == [1, "replaced", "folder"]
        monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.EIO, "broken disk")))
        with pytest.raises(OSError, match="broken disk"):
            resume.save(confirmed(2))
    assert position_of(kept, rows) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"rows.csv", "position"}


def test_one_publisher_at_a_time_uses_a_resume_file(run: Any, rows: Path, tmp_path: Path) -> None:
    kept = tmp_path / "position"
    with resuming(kept, rows) as resume:
        for count in (1, 2):  # the lock outlives the replacement of the file
            arguments = ["publish", str(rows), "-x", "e", "-U", "amqp://127.0.0.1:1", "--resume", str(kept)]
            assert "no other rabbit-chx publish uses" in run.refused(*arguments)
            resume.save(confirmed(count))
    assert position_of(kept, rows) == 2


def test_a_resume_file_is_not_written_through_a_symbolic_link(rows: Path, tmp_path: Path) -> None:
    victim, link = tmp_path / "victim", tmp_path / "position"
    victim.write_text("precious")
    link.symlink_to(victim)
    with pytest.raises(InvalidValue, match="symbolic link"):
        position_of(link, rows)
    link.unlink()
    (tmp_path / "position.new").symlink_to(victim)  # the temporary name of an earlier version
    with resuming(link, rows) as resume:
        resume.save(confirmed(1))
    assert victim.read_text() == "precious"


def test_a_position_after_the_last_row_skips_no_row_silently(run: Any, rows: Path, tmp_path: Path) -> None:
    kept = tmp_path / "position"
    assert position_of(kept, rows) == 0
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"rows": 10**18}))
    with AmqpServer(lambda client: client.recv(1)) as server:
        arguments = ["publish", str(rows), "-x", "e", "-k", "a", "-U", server.url, "--resume", str(kept)]
        assert "at most the 1 rows" in run.refused(*arguments)


def test_a_folder_is_no_resume_file(rows: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="Is a directory"):
        position_of(tmp_path, rows)


@pytest.mark.long  # the broker is given ten seconds
def test_a_signal_ends_a_command_that_waits_for_a_silent_broker(tmp_path: Path) -> None:
    file, kept = tmp_path / "rows.jsonl", tmp_path / "position"
    file.write_text('{"k": "c"}\n' * 20_000)  # more than may be in flight
    published = threading.Event()

    def never_confirm(client: socket.socket) -> None:
        published.set()
        while client.recv(1 << 16):
            pass

    with AmqpServer(never_confirm) as server:
        options = ("-x", "x", "-U", server.url, "--resume", kept, "--output", "json")
        with started("publish", file, *options, env={}) as running:
            assert published.wait(60)
            running.send_signal(signal.SIGTERM)
            output, errors = running.communicate(timeout=60)
    assert running.returncode == 143, errors
    assert errors.decode().splitlines()[-1] == "Interrupted."
    totals = json.loads(output)
    assert (totals["confirmed"], totals["pending"]) == (0, 0)
    assert totals["published"] == totals["unknown"] + totals["unsent"]
    assert position_of(kept, file) == 0


class FailingPublisher:
    """Confirms each message at once, except one that no queue accepts."""

    error = None

    def __init__(self, *_: object, failed: int, **_more: object) -> None:
        self._failed = failed
        self.published: list[str] = []

    def open(self) -> None: ...

    def close(self, timeout: float) -> None: ...

    def bulk(self) -> FailingPublisher:
        return self

    def _stop_accepting(self) -> None: ...

    def add_many(self, bodies: list[bytes], keys: list[str], **_: object) -> None:
        assert len(self.published) <= 4 * MAX_SENT_AGAIN, "the command does not end"
        self.published += keys

    @property
    def failures(self) -> list[Failure]:
        if len(self.published) <= self._failed:
            return []
        return [Failure(self._failed, Outcome.RETURNED, "x", self.published[self._failed], "312 NO_ROUTE")]

    @property
    def totals(self) -> Totals:
        count, failed = len(self.published), len(self.failures)
        return Totals(published=count, confirmed=count - failed, returned=failed)

    @property
    def confirmed_before(self) -> int:
        return min(len(self.published), self._failed)


@pytest.mark.timeout(60)  # it would wait for ever
def test_a_failed_row_ends_a_call_with_a_position(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, kept = tmp_path / "rows.jsonl", tmp_path / "position"
    file.write_text("".join(f'{{"k": "c{row}"}}\n' for row in range(1, 30_001)))
    publishers = []

    def publisher(*given: object, **more: Any) -> FailingPublisher:
        publishers.append(FailingPublisher(*given, failed=2_499 if not publishers else 499, **more))
        return publishers[-1]

    monkeypatch.setattr("rabbit_chx.cli.publish.Publisher", publisher)
    arguments = ["publish", file, "-x", "x", "-k", "k", "-U", "amqp://127.0.0.1:1", "--resume", kept]
    for position in (2_499, 2_998):
        failed = run(*arguments)
        assert failed.code == 1
        assert (
            f"row {position + 1}: returned, exchange 'x', key 'c{position + 1}': 312 NO_ROUTE" in failed.err
        )
        assert f"The next call starts at row {position + 1} " in failed.err
        assert position_of(kept, file) == position
    first, second = (each.published for each in publishers)
    assert len(first) == 3_000  # not the rows of the file after the failed one
    assert second[0] == "c2500"


def test_an_invalid_row_hides_no_outcome_of_the_rows_before_it(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rows.jsonl"
    lines = [json.dumps({"k": f"c{row}" if row <= 5_000 else 7}) for row in range(1, 5_002)]
    file.write_text("\n".join(lines))
    monkeypatch.setattr("rabbit_chx.cli.publish.Publisher", partial(FailingPublisher, failed=2))
    found = run("publish", file, "-x", "x", "-k", "k", "-U", "amqp://127.0.0.1:1", "--output", "json")
    assert found.code == 1
    assert "row 3: returned" in found.err
    assert "column 'k' in row 5001" in found.err
    assert [row["published"] for row in found.rows] == [5_000]


@pytest.mark.parametrize("failed", [499, 40_000], ids=["a row fails", "no row fails"])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda file: file.write_text("{}"), "which changed while it was read"),
        (Path.unlink, "No such file or directory"),
    ],
)
def test_a_file_that_changes_while_it_is_read_hides_no_outcome(
    change: Any, text: str, failed: int, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, kept = tmp_path / "rows.jsonl", tmp_path / "position"
    file.write_text('{"k": "c"}\n' * 30_000)

    class Changing(FailingPublisher):
        def add_many(self, *given: Any, **more: Any) -> None:
            super().add_many(*given, **more)
            if len(self.published) == 1_000:
                change(file)

    monkeypatch.setattr("rabbit_chx.cli.publish.Publisher", partial(Changing, failed=failed))
    monkeypatch.setattr("rabbit_chx.cli.publish_resume._SAVE_SECONDS", math.inf)
    options = ("-x", "x", "-k", "k", "-U", "amqp://127.0.0.1:1", "--resume", kept, "--output", "json")
    found = run("publish", file, *options)
    assert found.code == 1
    assert text in found.err.splitlines()[-1]
    totals = found.rows[0]
    assert totals["published"] == totals["confirmed"] + (failed == 499)
    assert ("row 500: returned" in found.err) is (failed == 499)
    assert "The next call starts" not in found.err
    assert json.loads(kept.read_text())["rows"] == 0


@pytest.mark.parametrize(("value", "what"), [(2**63, "header h"), ("\ud800", "header h")])
def test_a_row_that_cannot_be_sent_is_named_by_its_number_in_the_file(
    value: object, what: str, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rows.jsonl"
    lines = [json.dumps({"k": f"c{row}", "h": value if row == 7_001 else "x"}) for row in range(1, 7_501)]
    file.write_text("\n".join(lines))
    monkeypatch.setattr("rabbit_chx.publishing.Publisher.open", lambda _self: None)
    monkeypatch.setattr("rabbit_chx.publishing.Bulk._add_columns", lambda *_: None)
    error = run.refused(
        "publish", file, "-x", "x", "-k", "k", "--header-column", "h", "-U", "amqp://127.0.0.1:1"
    )
    assert f"invalid {what} in row 7001: got {value!r}, expected " in error


def test_rows_whose_whole_block_lacks_an_optional_field_are_read() -> None:
    """Once, the second block of 5,000 rows failed, after the first one was published."""
    lines = [json.dumps({"k": "c", "h": row} if row <= 2 else {"k": "c"}) for row in range(1, 10_002)]
    picker = Picker(key="k", headers={"tenant": "h"}, properties={"type": "h"})
    batches = read("jsonl", "\n".join(lines).encode(), picker)
    assert [value["tenant"] for batch in batches for value in batch.headers or ()] == [1, 2, *[None] * 9_999]
    assert [value for batch in batches for value in batch.properties["type"]] == [1, 2, *[None] * 9_999]
    assert batches[-1].bodies == [b'{"k": "c"}']
    with pytest.raises(InvalidValue, match="column of rows: got 'other', expected k, h"):
        read("jsonl", "\n".join(lines).encode(), Picker(key="k", headers={"tenant": "other"}))


def test_a_long_csv_field_is_published(tmp_path: Path) -> None:
    body = "x" * 1_000_000
    (batch,) = Picker(body="b").batches(
        read_batches(io.BytesIO(f"a,b\n1,{body}\n".encode()), "csv", "f"), "f"
    )
    assert batch.bodies == [body.encode()]
