"""The command line as a user meets it: in a process of its own, with pipes, exit codes and no traceback."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TWO = ("-q", "q0", "-q", "q1")


def run(
    *arguments: str, stdin: bytes = b"", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    clean = {key: value for key, value in os.environ.items() if key not in {"AMQP_URL", "RABBITMQ_URL"}}
    return subprocess.run(
        [sys.executable, "-m", "rabbit_chx", *arguments],
        input=stdin,
        capture_output=True,
        check=False,
        env=clean | (env or {}),
        timeout=120,
    )


def json_lines(output: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.splitlines()]


def error_of(*arguments: str, stdin: bytes = b"") -> str:
    """The one line that a refused command leaves, after checking that it is a clear one."""
    done = run(*arguments, stdin=stdin)
    assert done.returncode == 64, done
    assert done.stdout == b""
    text = done.stderr.decode()
    assert "Traceback" not in text
    return text


def test_route_names_the_queue_of_each_key() -> None:
    done = run("route", "customer-42", "b", "-q", "q0", "-q", "q1", "-q", "q2=2")
    assert done.returncode == 0
    assert done.stdout.decode().split() == ["customer-42", "q0", "b", "q1"]


def test_json_is_one_object_a_line_with_key_queue_and_bucket() -> None:
    (line,) = json_lines(run("route", "customer-42", *TWO, "-q", "q2=2", "--output", "json").stdout)
    assert line == {"schema": 1, "type": "route", "key": "customer-42", "queue": "q0", "bucket": 0}


def test_explain_shows_the_evidence() -> None:
    # phash2(<<"customer-42">>) as Erlang prints it
    text = run("route", "customer-42", *TWO, "--explain").stdout.decode()
    assert "66013791" in text
    assert '<<"customer-42">>' in text
    (line,) = json_lines(run("route", "customer-42", *TWO, "--explain", "--output", "json").stdout)
    assert line["hash"] == 66013791
    assert line["seed"] == 66013791 % 2**21


def test_a_header_is_routed_by_its_value_and_as_key_alike() -> None:
    by_header = run("route", "--hash-header", "t", "--header", "t=acme", *TWO, "--output", "json")
    by_key = run("route", "acme", "--hash-header", "t", *TWO, "--output", "json")
    assert json_lines(by_header.stdout)[0]["queue"] == json_lines(by_key.stdout)[0]["queue"]


def test_keys_from_a_file_a_pipe_and_arguments_agree(tmp_path: Path) -> None:
    keys = [f"key-{i}" for i in range(50)] + ["", "ключ", "a b"]
    file = tmp_path / "keys"
    file.write_text("\n".join(keys), encoding="utf-8")
    from_file = json_lines(run("route", "--keys", str(file), *TWO, "--output", "json").stdout)
    from_pipe = json_lines(
        run("route", "--keys", "-", *TWO, "--output", "json", stdin=file.read_bytes()).stdout
    )
    from_arguments = json_lines(run("route", *keys, *TWO, "--output", "json").stdout)
    assert from_file == from_pipe == from_arguments
    assert [line["key"] for line in from_file] == keys


def test_line_ends_of_either_system_are_no_part_of_a_key() -> None:
    unix = run("route", "--keys", "-", *TWO, stdin=b"a\nb\n\nc\n")
    windows = run("route", "--keys", "-", *TWO, stdin=b"a\r\nb\r\n\r\nc\r\n")
    assert unix.stdout == windows.stdout
    assert unix.stdout.count(b"\n") == 4


def test_a_file_larger_than_a_block_is_counted_whole() -> None:
    keys = b"".join(b"key-%d\n" % i for i in range(900_000))
    assert len(keys) > 2 * (1 << 22)
    counts = json_lines(run("route", "--keys", "-", "--count", *TWO, "--output", "json", stdin=keys).stdout)
    assert sum(line["keys"] for line in counts) == 900_000
    assert all(0.49 < line["share"] < 0.51 for line in counts)


def test_raw_keys_may_be_any_bytes() -> None:
    (first, second) = json_lines(
        run("route", "--keys", "-", "--raw", *TWO, "--output", "json", stdin=b"\xff\xfe\nplain\r\n").stdout
    )
    assert first["key_base64"] == "//4="
    assert second["key"] == "plain\r"


def test_ring_shows_shares_and_that_a_mnesia_restart_is_unknown() -> None:
    rows = json_lines(run("ring", *TWO, "--release", "4.0", "--output", "json").stdout)
    assert [row["queue"] for row in rows] == ["q0", "q1"]
    assert sum(row["share"] for row in rows) == 1.0
    assert all(row["first_bucket_after_restart"] is None for row in rows)
    assert "unknown" in run("ring", *TWO, "--release", "4.0").stdout.decode()


def test_ring_infers_the_order_from_pairs(tmp_path: Path) -> None:
    keys = [f"k{i}" for i in range(200)]
    routed = json_lines(run("route", *keys, "-q", "b=2", "-q", "a", "-q", "c", "--output", "json").stdout)
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("key,queue\n" + "".join(f"{line['key']},{line['queue']}\n" for line in routed))
    rows = json_lines(
        run("ring", "--infer", str(pairs), "-q", "a", "-q", "b=2", "-q", "c", "--output", "json").stdout
    )
    assert [row["queue"] for row in rows] == ["b", "a", "c"]


def test_contradicting_pairs_are_named(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("a,q0\na,q1\n")
    done = run("ring", "--infer", str(pairs), *TWO)
    assert done.returncode == 1
    assert "'a' (seen at 'q0') and 'a' (seen at 'q1')" in done.stderr.decode()


@pytest.mark.parametrize(
    "weight", ["0", "-1", "1.5", "abc", "", " 1", "1_0", "\N{FULLWIDTH DIGIT ONE}", "10001", "1000000000"]
)
def test_bad_weights_are_refused_with_what_is_allowed(weight: str) -> None:
    text = error_of("route", "k", "-q", f"q0={weight}")
    assert "queue 'q0'" in text
    assert "from 1 to 10000" in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["route", "k"], "missing --queue NAME[=WEIGHT]"),
        (["route", *TWO], "missing KEY"),
        (["route", "k", "-q", "q0", "-q", "q0"], "twice"),
        (["route", "k", *TWO, "--hash-header", "a", "--hash-property", "message_id"], "both"),
        (["route", "k", *TWO, "--hash-property", "app_id"], "message_id, correlation_id or timestamp"),
        (["route", "--header", "a=b", *TWO], "--hash-header"),
        (["route", "--header", "ab", *TWO, "--hash-header", "a"], "NAME=VALUE"),
        (["route", "x" * 256, *TWO], "255 bytes"),
        (["route", "é" * 128, *TWO], "255 bytes"),
        (["route", "k", *TWO, "--release", "4.x"], "4.3.6 or 4.3"),
        (["route", "k", *TWO, "--release", "9.1"], "parity"),
        (["route", "k", *TWO, "--release", "3.12", "--store", "khepri"], "mnesia"),
        (["route", "k", "--keys", "f", *TWO], "KEY and --keys"),
        (["route", "--keys", "/does/not/exist", *TWO], "No such file"),
        (["route", "--keys", "/", *TWO], "Is a directory"),
        (["route", "--keys", "-", *TWO], "empty"),
        (["route", "soon", *TWO, "--hash-property", "timestamp"], "seconds since 1970"),
        (["ring", "--infer", "/does/not/exist", *TWO], "No such file"),
        (["parity"], "--url"),
        (["route", "k", "--no-such-option"], "No such option"),
        (["rout"], "No such command 'rout'. Did you mean route?"),
    ],
)
def test_wrong_usage_says_what_is_wrong_and_the_way_out(arguments: list[str], expected: str) -> None:
    assert expected in error_of(*arguments)


def test_without_a_verb_the_help_is_all_that_is_said() -> None:
    done = run()
    assert done.returncode == 64
    assert done.stderr == run("--help").stdout


def test_a_file_that_is_no_utf8_names_the_line_and_the_way_out() -> None:
    text = error_of("route", "--keys", "-", *TWO, stdin=b"fine\nfine\n\xff\xfe\n")
    assert "line 3 of standard input" in text
    assert "--raw" in text


def test_a_line_too_long_to_be_a_key_is_named() -> None:
    text = error_of("route", "--keys", "-", *TWO, stdin=b"fine\n" + b"x" * 300 + b"\n")
    assert "line 2 of standard input" in text
    assert "300 bytes" in text
    endless = error_of("route", "--keys", "-", *TWO, stdin=b"x" * (3 << 21))
    assert "line 1" in endless


@pytest.mark.parametrize(
    "url", ["amqp://u:sesame@h:port", "amqp://u:ses/ame@h", "http://u:sesame@h", "sesame"]
)
def test_a_malformed_url_is_never_echoed(url: str) -> None:
    text = error_of("parity", "--url", url)
    assert "sesame" not in text
    assert "ame@h" not in text
    assert "%2F" in text


def test_a_broker_that_is_not_there_fails_with_its_address_and_without_the_password() -> None:
    done = run("parity", "--url", "amqp://me:sesame@127.0.0.1:1/v")
    assert done.returncode == 1
    text = done.stderr.decode()
    assert "127.0.0.1:1, virtual host 'v', user 'me'" in text
    assert "sesame" not in text


def test_a_reader_that_has_seen_enough_ends_it_quietly() -> None:
    keys = b"".join(b"key-%d\n" % i for i in range(500_000))
    with subprocess.Popen(
        [sys.executable, "-m", "rabbit_chx", "route", "--keys", "-", *TWO],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(keys[: 1 << 22])
        process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            for _ in range(100):
                process.stdin.write(keys)
        assert process.stderr.read() == b""


def test_no_output_is_coloured_in_a_pipe() -> None:
    for command in (["ring", *TWO], ["doctor"], ["demo", "--offline"]):
        done = run(*command)
        assert b"\x1b[" not in done.stdout
        assert done.stdout


def test_doctor_names_the_failing_broker_and_the_way_out() -> None:
    done = run("doctor", "--url", "amqp://me:sesame@127.0.0.1:1/", "--output", "json")
    assert done.returncode == 1
    (failed,) = [check for check in json_lines(done.stdout) if check["state"] == "failed"]
    assert failed["hint"]
    assert b"sesame" not in done.stdout + done.stderr


def test_debug_shows_the_traceback() -> None:
    done = run("--debug", "route", "k", "-q", "q0=0")
    assert "Traceback" in done.stderr.decode()


def test_routing_one_key_imports_neither_numpy_nor_rich() -> None:
    program = (
        "import sys; from rabbit_chx.cli import _exit_code; _exit_code(['route', 'k', '-q', 'a', '-q', 'b']); "
        "sys.exit(' '.join({'numpy', 'rich', 'pika'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.stderr == b"\n"
