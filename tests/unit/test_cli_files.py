"""Files that a command reads and writes: what stays of a file that is replaced, and input that is not there."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from rabbit_chx.cli import _exit_code
from rabbit_chx.cli.ask.inputs import open_file
from rabbit_chx.cli.ask.row_files import read_batches
from rabbit_chx.cli.show.output import replace_file
from rabbit_chx.errors import InvalidValue

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="modes, links and named pipes of POSIX")


def test_a_file_is_replaced_as_a_whole_and_keeps_its_mode(tmp_path) -> None:
    file = tmp_path / "x.prom"
    replace_file(str(file), "new", option="--metrics")
    assert file.stat().st_mode & 0o777 == 0o644
    file.chmod(0o640)
    before = file.stat().st_ino
    replace_file(str(file), "ö", option="--metrics")
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == ("ö".encode(), 0o640)
    assert file.stat().st_ino != before
    assert [each.name for each in tmp_path.iterdir()] == ["x.prom"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_and_leads_to_the_new_text(tmp_path, exists: bool) -> None:
    """Once, a file replaced it."""
    target, link = tmp_path / "target", tmp_path / "link"
    if exists:
        target.write_text("old")
    link.symlink_to("target")
    replace_file(str(link), "new", option="--metrics")
    assert link.is_symlink()
    assert target.read_text() == "new"


@pytest.mark.parametrize("suffix", ["new", "tmp", "bak"])
def test_a_link_with_a_name_that_others_can_predict_leads_to_no_written_file(tmp_path, suffix: str) -> None:
    """Once, `scale --write` wrote through the link `topology.yaml.new`, which then was the file, with mode 644."""
    victim, file, link = (tmp_path / name for name in ("victim", "topology.yaml", f"topology.yaml.{suffix}"))
    victim.write_text("precious")
    file.touch(0o600)
    link.symlink_to(victim)
    replace_file(str(file), "new", option="--write")
    assert (victim.read_text(), file.read_text()) == ("precious", "new")
    assert (file.is_symlink(), file.stat().st_mode & 0o777) == (False, 0o600)
    assert link.readlink() == victim


def test_a_pipe_is_written_to(tmp_path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    replace_file(str(pipe), "text", option="--metrics")
    reader.join(60)
    assert read == ["text"]
    assert pipe.is_fifo()


def test_a_file_that_cannot_be_written_is_named_as_it_was_typed(tmp_path) -> None:
    for path in (str(tmp_path / "nope" / "x"), str(tmp_path)):
        with pytest.raises(InvalidValue) as refused:
            replace_file(path, "text", option="--metrics")
        assert (refused.value.what, refused.value.got) == ("--metrics", path)
        assert path in str(refused.value)
        assert ".x." not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_standard_output_that_is_closed(tmp_path, capsys, monkeypatch) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a\n")
    monkeypatch.setattr(sys, "stdout", None)
    assert _exit_code(["route", "--keys", str(keys), "-q", "a"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("route", "--keys", "-", "-q", "a"),
        ("simulate", "--keys", "-", "-q", "a"),
        ("publish", "-", "--format", "csv", "-x", "e", "-U", "amqp://h"),
    ],
)
def test_standard_input_that_is_closed(capsys, monkeypatch, arguments) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert _exit_code(list(arguments)) == 64
    expected = "invalid standard input: got a closed stream, expected a file or a pipe"
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_a_file_is_read_while_standard_input_is_closed(tmp_path, monkeypatch, kind) -> None:
    pa = pytest.importorskip("pyarrow")
    file, table = str(tmp_path / "rows"), pa.table({"a": [1, 2]})
    if kind == "parquet":
        pytest.importorskip("pyarrow.parquet").write_table(table, file)
    else:
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    monkeypatch.setattr(sys, "stdin", None)
    with open_file(file) as opened:
        assert list(read_batches(opened, kind, "rows")) == [{"a": [1, 2]}]


def test_a_line_that_is_too_long_is_shown_as_text(run) -> None:
    for arguments in (("--keys", "-"), ("x" * 300,)):
        err = run("route", *arguments, "-q", "a", stdin=b"x" * 300).err
        assert f"got '{'x' * 40}'... (300 bytes), expected" in err
