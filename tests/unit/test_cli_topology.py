"""The verbs for topologies without a broker: files, plans from file to file, refusals, prompts and exit codes."""

from __future__ import annotations

import io
import json
import re
import sys

import pytest

from rabbit_chx.cli.show.plan_rows import condense, rows_of
from rabbit_chx.errors import ApplyStopped
from rabbit_chx.topology.model import Binding, Queue
from rabbit_chx.topology.planning.steps import Bind, DeclareQueue, Plan, Unbind
from tests.verbs import ORDERS, SLOTS, Result

APPLY = "rabbit_chx.cli.apply.apply_steps"


# ---- files


@pytest.mark.parametrize("verb", ["lint", "plan", "apply", "check", "export"])
@pytest.mark.parametrize("content", [None, b"", b"\x00\x01\xff\xfe\x80", "directory"])
def test_an_invalid_file_is_a_clear_error(run, write, tmp_path, verb, content) -> None:
    path = tmp_path / "missing.yaml"
    if content == "directory":
        path = tmp_path
    elif content is not None:
        path = write(content)
    code = 1 if verb == "lint" and path.is_file() else 64  # lint is about the file, the others need it
    assert str(path) in run.refused(verb, path, *(["--yes"] if verb == "apply" else []), code=code)


def test_all_problems_of_a_file_are_reported_together(run, write) -> None:
    file = write("schema: 1\nexchanges:\n  x: {type: fanout, durabel: true}\nqueues: {q: {type: quorun}}\n")
    text = run.refused("lint", file, code=1)
    assert f"{file}:3:" in text
    assert f"{file}:4:" in text
    assert "durable" in text


def test_the_exit_code_of_lint_distinguishes_warnings_from_errors(run, write) -> None:
    fine = run("lint", write(ORDERS))
    assert fine.code == 0
    assert "1 exchange, 4 queues, 4 bindings, 0 policies; 0 findings" in fine.out
    exchange = {"name": "x", "vhost": "/", "type": "x-consistent-hash", "arguments": {"hash-header": 5}}
    definitions = {"rabbit_version": "4.0.5", "vhosts": [{"name": "/"}], "exchanges": [exchange]}
    found = run("lint", write(json.dumps(definitions), "definitions.json"), "--output", "json")
    assert found.code == 1
    assert "hash-header-type" in {row["code"] for row in found.rows if row["severity"] == "error"}


def test_an_export_of_a_file_turns_definitions_into_a_topology_that_loads_again(run, write, tmp_path) -> None:
    out = tmp_path / "definitions.json"
    assert run("export", write(ORDERS), "--format", "definitions", "-o", out).code == 0
    assert json.loads(out.read_text())["exchanges"][0]["type"] == "x-consistent-hash"
    again = run("export", out)
    assert again.code == 0
    assert "x-consistent-hash" in again.out
    kept = out.read_text()
    found = run("export", write(ORDERS), "-o", out)
    assert found.code == 64
    assert "expected a file that does not exist yet. `export` overwrites no file" in found.err
    assert out.read_text() == kept


# ---- plans from a file

GROWN = ORDERS.replace("vip: 2", "vip: 2, new: 1") + "  new: {}\n"


@pytest.fixture
def plan(run, write):
    """Plan from one topology to another."""

    def plan(new: str, *options: str, old: str = ORDERS) -> Result:
        return run("plan", write(new, "new.yaml"), "--against", write(old, "old.yaml"), *options)

    return plan


def test_a_plan_that_apply_would_refuse_exits_with_1(plan) -> None:
    wrong = plan(GROWN.replace("queues: {", "arguments: {hash_header: tenant}\n    queues: {"))
    assert (wrong.code, "hash_header" in wrong.err) == (1, True), wrong


def test_a_single_exchange_comes_with_its_alternate_exchange(plan) -> None:
    text = (SLOTS % 5).replace("    slots: 64\n", "    slots: 64\n    alternate-exchange: unrouted\n")
    behind = "  unrouted: {type: fanout, bindings: [{queue: lost}]}\n  other: {type: fanout}\nqueues:\n  lost: {}\n"
    found = plan(
        text.replace("queues:\n  ", f"{behind}  "), "-x", "tenants", old="schema: 1\nexchanges: {}\n"
    )
    assert "exchange 'unrouted'" in found.out, found
    assert "queue 'lost'" in found.out
    assert "'other'" not in found.out


def test_a_plan_against_another_file_exits_by_whether_there_is_something_to_do(plan) -> None:
    same = plan(ORDERS)
    assert (same.code, same.err) == (0, "")
    assert "no changes needed" in same.out
    grown = plan(GROWN, "--output", "json")
    assert grown.code == 2
    assert [row["do"] for row in grown.rows if "do" in row] == [
        "declare quorum queue 'new'",
        "bind queue 'new' to exchange 'orders' with key '1'",
    ]
    # 6 buckets where there were 5: a sixth of the keys goes to the new one
    (change,) = [row for row in grown.rows if "strategies" in row]
    assert change["moved"] == pytest.approx(1 / 6, abs=0.001)
    reordered = ORDERS.replace('{"q.{0..2}": 1, vip: 2}', '{vip: 2, "q.{0..2}": 1}')
    refused = plan(reordered, "--strategy", "in place")
    assert refused.code == 1
    assert "Refused:" in refused.err


def test_a_plan_says_whose_consumers_to_hold_so_that_keys_keep_their_order(plan) -> None:
    grown = plan(GROWN)
    held = "the consumers of 'new' are held from before the change until the messages in 'q.{0..2}', 'vip' are consumed"
    assert held in grown.out
    assert "stages" not in grown.out
    two = GROWN.replace("new: 1", "new: 1, newer: 1") + "  newer: {}\n"
    assert "Release them in 2 stages" in plan(two).out
    (hold,) = (row for row in plan(GROWN, "--output", "json").rows if row["type"] == "hold")
    assert (hold["hold"], hold["until_drained"]) == ("new", ["q.0", "q.1", "q.2", "vip"])
    # Without q.1 the buckets behind it shift: q.2 loses some of its keys and gains others.
    shifted = ORDERS.replace('{"q.{0..2}": 1, vip: 2}', "{q.0: 1, q.2: 1, vip: 2}")
    assert "gain keys from each other" in plan(shifted, "--force").out


@pytest.mark.parametrize("option", [["--strategy", "swap"], ["--prune"], ["--force"], ["--max-moved", "9"]])
def test_options_of_a_plan_are_refused_where_only_the_cost_of_a_change_is_shown(run, write, option) -> None:
    complaint = run.refused("plan", write(ORDERS), "--add", "1", *option)
    assert f"{option[0]} has no effect on the cost of --add, --remove and --weight" in complaint


def test_selections_without_an_effect_on_a_plan_are_refused(run, write) -> None:
    file = write(ORDERS)
    assert "--against has no effect on the cost" in run.refused(
        "plan", file, "--against", file, "--weight", "vip=3"
    )
    assert "--probe has no effect on a plan from another file" in run.refused(
        "plan", file, "--against", file, "--probe", "orders"
    )
    for option in (["--node", "rabbitmqctl eval"], ["--probe", "orders"], ["--pairs", "orders=seen.csv"]):
        complaint = run.refused("check", file, "--amqp-only", *option)
        assert f"{option[0]} has no effect on a broker that is read with --amqp-only" in complaint


def test_wrong_advice_is_refused(run, write) -> None:
    for change in (["--remove", "nope"], ["--weight", "vip=0"], ["--add", "vip"], ["--weight", "vip"]):
        assert change[1].partition("=")[0] in run.refused("plan", write(ORDERS), *change)


def test_many_slots_are_one_line_unless_every_step_is_asked_for(plan) -> None:
    short = plan(SLOTS % 5, old=SLOTS % 3).out
    assert "point 20 slots of 'tenants'" in short
    assert "31.25%" in short  # 20 of 64
    assert plan(SLOTS % 5, "--verbose", old=SLOTS % 3).out.count("bind queue") == 40
    rows = plan(SLOTS % 5, "--output", "json", old=SLOTS % 3).rows
    assert sum("step" in row for row in rows) == 40


@pytest.mark.parametrize("columns", ["80", "140"])
def test_a_plan_fits_its_terminal(plan, monkeypatch, columns) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("COLUMNS", columns), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    lines = plan(SLOTS % 5, old=SLOTS % 3).out.splitlines()
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    table = [line for line in plain if not line.startswith(("Exchange", "Note"))]
    assert max(map(len, table)) <= int(columns)
    assert not any("\x1b[3" in line for line in lines)  # bold may stay, colours may not


# ---- how lists are folded


def test_runs_of_one_running_number_become_one_line() -> None:
    lines = [f"queue 'q.{number}' is gone" for number in (8, 9, 10)]
    assert condense(lines) == ["queue 'q.{8..10}' is gone"]
    assert condense([*lines, "queue 'q.12' is gone"]) == ["queue 'q.{8..10}' is gone", "queue 'q.12' is gone"]
    assert condense(["queue 'q.09'", "queue 'q.10'"]) == ["queue 'q.{09..10}'"]
    alone = ["queue 'q' key '1'", "queue 'q' key '2'"]
    assert condense(alone) == alone  # weights are no names
    both = ["'a.0' to 'x.0'", "'a.1' to 'x.1'"]
    assert condense(both) == both
    turning = ["'a.0' to 'x.0'", "'a.1' to 'x.0'", "'a.1' to 'x.1'"]
    assert condense(turning) == ["'a.{0..1}' to 'x.0'", "'a.1' to 'x.1'"]
    assert condense([]) == []


def test_steps_of_different_cost_are_not_condensed_and_none_is_lost() -> None:
    binds = [
        Bind(Binding("x", f"q.{number}", "1"), exchange_moved="x", moved=share)
        for number, share in enumerate((0.5, 0.5, 0.25))
    ]
    slot = [Bind(Binding("t.slot.7", "b", "1")), Unbind(Binding("t.slot.7", "a", "1"), moved=0.1, at_risk=3)]
    plan = Plan("/", (DeclareQueue(Queue("q.1")), *binds, *slot))
    rows = rows_of(plan)
    assert [row.count for row in rows] == [1, 2, 1, 2]
    assert [row.share for row in rows[1:3]] == ["50.00%", "25.00%"]
    assert "a -> b (1)" in rows[3].text
    assert rows[3].waiting == 3
    assert len(rows_of(plan, verbose=True)) == len(plan.steps)


# ---- apply asks


@pytest.mark.parametrize("stdin", [None, io.StringIO("")])
def test_apply_without_a_terminal_wants_yes(run, write, monkeypatch, stdin) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    refused = run.refused("apply", write(ORDERS), "--url", "amqp://127.0.0.1:1/")
    assert "stdin is not a terminal: pass --yes or --dry-run. `rabbit-chx plan FILE` shows" in refused


@pytest.mark.usefixtures("empty_broker")
@pytest.mark.parametrize(
    ("said", "options", "code"),
    [("n\n", [], 1), ("\n", [], 1), ("what\nno\n", [], 1), ("", ["--dry-run"], 2)],
)
def test_without_a_yes_and_in_a_dry_run_nothing_is_changed(
    run, write, answer, monkeypatch, said, options, code
) -> None:
    monkeypatch.setattr(APPLY, lambda *_, **__: pytest.fail("it was applied"))
    answer(said)
    found = run("apply", write(ORDERS), *options)
    assert found.code == code
    assert "declare quorum queue 'q.{0..2}'" in found.out
    assert ("Apply 9 steps?" in found.err) == (not options)
    assert ("Nothing was changed." in found.err) == (not options)


def stops_after(count: int, error: type[BaseException], *, in_doubt: bool = False):
    def apply(_, plan, *, on_step, **__):
        for step in plan.steps[:count]:
            on_step(step)
        if error is ApplyStopped:
            raise ApplyStopped(
                "enough", plan.steps[:count], plan.steps[count], plan.steps[count + 1 :], in_doubt=in_doubt
            )
        raise error

    return apply


WITHOUT_THE_CAUSE = "With the cause removed, the same command applies the rest."
AGAIN = "Run the same command again to apply the rest."


@pytest.mark.usefixtures("empty_broker")
@pytest.mark.parametrize(
    ("count", "error", "in_doubt", "code", "said"),
    [
        (2, ApplyStopped, False, 3, f"Steps done: 2 of 9. {WITHOUT_THE_CAUSE}"),
        (0, ApplyStopped, True, 3, f"Steps done: at least 0 of 9. {WITHOUT_THE_CAUSE}"),
        (0, ApplyStopped, False, 1, None),
        (2, KeyboardInterrupt, False, 130, f"Steps done: at least 2 of 9. {AGAIN}"),
        (0, KeyboardInterrupt, False, 130, None),
    ],
)
def test_an_apply_that_ends_early_says_what_is_done(
    run, write, answer, monkeypatch, count, error, in_doubt, code, said
) -> None:
    monkeypatch.setattr(APPLY, stops_after(count, error, in_doubt=in_doubt))
    answer("y\n")
    found = run("apply", write(ORDERS))
    assert found.code == code
    assert found.out.count("] declare") == count
    assert said in found.err if said else "Steps done" not in found.err
    assert not said or "nothing was changed" not in found.err.lower()
    assert "Traceback" not in found.err


def test_an_interrupted_apply_of_another_order_is_continued_with_that_order(
    run, write, live, monkeypatch
) -> None:
    live(ORDERS)
    monkeypatch.setattr(APPLY, stops_after(1, ApplyStopped))
    fewer = write(ORDERS.replace('{"q.{0..2}": 1, vip: 2}', "{q.0: 1, vip: 2}"))
    found = run("apply", fewer, "--strategy", "remove-last", "--force", "--yes")
    assert (found.code, "Write the order that the plan shows into the file" in found.err) == (3, True), (
        found.err
    )


# ---- mistakes of our own


def test_an_internal_error_is_reported_without_a_traceback(run, write, monkeypatch) -> None:
    def broken(*_, **__):
        raise KeyError("amqp://me:sesame@host/")

    monkeypatch.setattr("rabbit_chx.cli.lint.find", broken)
    found = run("lint", write(ORDERS))
    assert (found.code, found.out) == (70, "")
    assert "Error: KeyError" in found.err
    assert "--debug" in found.err
    assert "Traceback" not in found.err
    told = run("--debug", "lint", write(ORDERS))
    assert "Traceback" in told.err
    assert "sesame" not in found.err + told.err
