"""``check``, ``plan`` and ``apply`` for single exchanges, and with a second binding that has no effect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rabbit_chx.mirror.ring import Ring
from rabbit_chx.topology.file.load import loads
from rabbit_chx.topology.model import Binding
from rabbit_chx.topology.planning.what_if import assume_applied
from tests.verbs import ORDERS, SCALED

BROKER = "-U", "amqp://h"


CHANGED = SCALED.replace("r.{0..3}", "r.{0..4}").replace("f.{0..3}", "f.{0..4}")


def test_single_exchanges_are_compared_with_what_they_lead_to(run, write, live) -> None:
    live(SCALED)
    file = write(CHANGED)
    planned = run("plan", file, *BROKER, "-x", "ring", "--output", "json")
    assert planned.code == 2
    assert [row["do"] for row in planned.rows if "do" in row] == [
        "declare quorum queue 'r.4'",
        "bind queue 'r.4' to exchange 'ring' with key '1'",
    ]
    checked = run("check", file, *BROKER, "-x", "ring", "-x", "slots").out
    assert "r.4" in checked
    assert "f.4" not in checked
    assert run("check", file, *BROKER, "-x", "slots").code == 0
    applied = run("apply", file, *BROKER, "-x", "slots", "--yes")
    assert (applied.code, "no changes needed" in applied.out) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("check", "-x", "rong"), "got 'rong', expected an exchange of the file. Did you mean 'ring'?"),
        (("plan", "-x", "x"), "It has exchanges 'flat', 'ring', 'slots'"),
        (("check", "-x", "ring", "--strict"), "--strict has no effect on single exchanges"),
        (("plan", "-x", "ring", "--prune"), "--prune has no effect on single exchanges"),
        (("apply", "-x", "ring", "--prune", "--yes"), "--prune has no effect on single exchanges"),
        (("plan", "-x", "ring", "-x", "flat", "--add", "1"), "name one --exchange"),
    ],
)
def test_single_exchanges_are_of_the_file_and_exclude_what_is_about_all(
    run, write, arguments, expected
) -> None:
    verb, *options = arguments
    assert expected in run.refused(verb, write(SCALED), *BROKER, *options)


@pytest.mark.parametrize("known", [True, False])
def test_a_second_binding_without_effect_is_a_warning_and_removed_only_if_asked(
    run, write, live, known
) -> None:
    observed = assume_applied(loads(ORDERS, format="yaml"))
    second = Binding("orders", "q.0", "7")
    topology = replace(observed.topology, bindings=(*observed.topology.bindings, second))
    ring = observed.rings["orders"].bind("q.0", 7)
    if not known:
        ring = Ring(ring.bindings, None, ring.release, "queue 'q.0' is bound with 2 weights")
    sources = {"orders": "node" if known else "unknown"}
    live(replace(observed, topology=topology, rings={"orders": ring}, ring_sources=sources))
    file = write(ORDERS)
    checked = run("check", file, *BROKER)
    assert checked.code == (0 if known else 2)
    assert "Warning: binding of queue 'q.0' to exchange 'orders': bound 2 times (weights 1, 7)" in checked.out
    assert run("check", file, *BROKER, "--strict").code == 2
    planned = run("plan", file, *BROKER, "--output", "json")
    assert planned.code == (0 if known else 2)
    assert not [row for row in planned.rows if "do" in row]
    assert any("'q.0' is bound 2 times" in row.get("note", "") for row in planned.rows)
    assert run("apply", file, *BROKER, "--yes").code == 0
    pruned = run("plan", file, *BROKER, "--prune", "--force", "--output", "json")
    removed = "unbind queue 'q.0' from exchange 'orders' with key '7'"
    assert removed in [row["do"] for row in pruned.rows if "do" in row]
