"""``plan --out`` and ``apply`` of the saved plan: what is asked, what is refused, and the exit codes."""

from __future__ import annotations

import json
import stat

import pytest

from rabbit_chx.broker.applying.plan_commands import Applied
from tests.verbs import ORDERS, SCALED

URL = "amqp://ci-user:ci-secret@h/"
GROWN = ORDERS.replace("vip: 2", "vip: 2, new: 1") + "  new: {}\n"
STEPS = ["declare quorum queue 'new'", "bind queue 'new' to exchange 'orders' with key '1'"]
CHANGED = "Refused: the broker has changed since this plan was made"


@pytest.fixture(autouse=True)
def environment(run, live, monkeypatch) -> None:
    monkeypatch.setenv("AMQP_URL", URL)
    live(ORDERS)


@pytest.fixture
def applied(monkeypatch):
    """The steps that are applied; the broker stays as it is."""
    steps: list[str] = []

    def apply(_, plan, *, on_step, **__):
        for step in plan.steps:
            steps.append(str(step))
            on_step(step)
        return Applied(plan.steps)

    monkeypatch.setattr("rabbit_chx.cli.apply.apply_steps", apply)
    return steps


@pytest.fixture
def saved(run, write, live, applied, tmp_path):
    """A plan that binds one more queue."""
    path = tmp_path / "release.plan"
    found = run("plan", write(GROWN), "-o", path)
    assert found.code == 2
    assert found.err.endswith(f"Saved the plan in {path}. `rabbit-chx apply {path}` applies it.\n")
    return path


def test_a_saved_plan_has_no_user_and_no_password_and_others_may_read_it(saved) -> None:
    text = saved.read_text()
    assert "ci-" not in text
    assert json.loads(text)["vhosts"][0]["steps"] == STEPS
    assert stat.S_IMODE(saved.stat().st_mode) == 0o644


def test_a_saved_plan_is_refused_if_the_broker_has_changed(run, saved, live, applied) -> None:
    live(ORDERS.replace("vip: 2", "vip: 2, other: 1") + "  other: {}\n")
    found = run("apply", saved, "--yes")
    assert found.code == 1
    assert CHANGED in found.err
    unbind = "unbind queue 'other' from exchange 'orders' with key '1'"
    assert f"Refused: not in the plan, but needed now: {unbind}\n" in found.err
    assert found.err.endswith("Nothing was changed.\n")
    assert run("apply", saved, "--dry-run").code == 1
    rows = run("apply", saved, "--output", "json").rows
    assert any(unbind in row["refusal"] for row in rows if row["type"] == "refusal")
    assert not applied


def test_a_dry_run_of_a_saved_plan_exits_like_one_of_a_file(run, saved, live, applied) -> None:
    assert run("apply", saved, "--dry-run").code == 2
    live(GROWN)
    assert run("apply", saved, "--dry-run").code == 0
    assert run("apply", saved).code == 0
    assert not applied


def test_the_options_of_a_plan_are_saved_and_cannot_be_given_again(
    run, write, live, applied, tmp_path
) -> None:
    live(ORDERS + "  unused: {}\n")
    path, file = tmp_path / "pruned.plan", write(ORDERS)
    assert run("plan", file, "--prune", "--force", "--max-moved", "7", "-o", path).code == 2
    for option in (
        "--prune",
        "--max-moved=9",
        "--force",
        "--strategy=swap",
        "--exchange=orders",
        "--vhost=/",
    ):
        complaint = run.refused("apply", path, option)
        assert "has no effect on a saved plan, which was made with its own options: leave it out" in complaint
        assert option.partition("=")[0] in complaint
    assert run("apply", path).code == 0
    assert applied == ["delete queue 'unused' with what is in it"]


def test_a_plan_of_single_exchanges_leaves_the_others(run, write, live, applied, tmp_path) -> None:
    live(SCALED)
    path = tmp_path / "ring.plan"
    changed = write(SCALED.replace("r.{0..3}", "r.{0..4}").replace("f.{0..3}", "f.{0..4}"))
    assert run("plan", changed, "-x", "ring", "-o", path).code == 2
    assert run("apply", path).code == 0
    assert applied == ["declare quorum queue 'r.4'", "bind queue 'r.4' to exchange 'ring' with key '1'"]


def test_a_refused_plan_is_not_saved(run, write, live, saved) -> None:
    before = saved.read_text()
    found = run("plan", write(ORDERS.replace("vip: 2", "vip: 3")), "--max-moved", "0", "-o", saved)
    assert found.code == 1
    assert found.err.endswith(f"The plan was not saved in {saved}.\n")
    assert saved.read_text() == before


def test_a_new_plan_replaces_an_older_one(run, write, saved, applied) -> None:
    assert run("plan", write(ORDERS), "-o", saved).code == 0
    assert run("apply", saved).code == 0
    assert not applied


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-o", "plan.json"], "invalid --out: got 'plan.json', expected a name that ends in .plan"),
        (["--add", "1", "-o", "x.plan"], "--out has no effect on the cost of --add, --remove and --weight"),
        (
            ["--against", "FILE", "-o", "x.plan"],
            "--out has no effect on a plan from another file (--against)",
        ),
        (
            ["-o", "missing/x.plan"],
            "invalid --out: got 'missing/x.plan', expected a file that can be written",
        ),
    ],
)
def test_a_plan_is_saved_only_from_a_broker_in_a_file_of_that_name(
    run, write, live, options, expected
) -> None:
    file = write(ORDERS)
    found = run("plan", file, *(file if each == "FILE" else each for each in options))
    assert found.code == 64
    assert expected in found.err


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"plan": 2, "rabbit-chx": "9.0"}', ORDERS])
def test_a_damaged_plan_file_is_wrong_usage(run, write, tmp_path, content) -> None:
    path = tmp_path / "release.plan" if content is None else write(content, "release.plan")
    complaint = run.refused("apply", path)
    assert "plan again" in complaint or "No such file" in complaint


def test_a_forged_step_is_never_carried_out(run, saved, applied) -> None:
    forged = json.loads(saved.read_text())
    forged["vhosts"][0]["steps"] = ["delete queue 'vip' with what is in it", *STEPS]
    saved.write_text(json.dumps(forged))
    assert run("apply", saved).code == 0
    assert applied == STEPS
