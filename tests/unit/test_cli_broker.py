"""What the topology verbs read of a broker, what they say of one that cannot be reached or read in part, and what `list` prints."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from rabbit_chx.broker.applying.plan_commands import Applied
from rabbit_chx.cli.ask.broker_access import BrokerAccess
from rabbit_chx.mirror.ring import Ring
from rabbit_chx.topology.file.load import load, loads
from rabbit_chx.topology.model import Binding, Exchange, Observed, Queue, Topology
from rabbit_chx.topology.planning.what_if import assume_applied
from tests.unit.conftest import NoQueues
from tests.verbs import ORDERS, SCALED, SLOTS

APPLY = "rabbit_chx.cli.apply.apply_steps"


@pytest.mark.parametrize("verb", ["plan", "check", "apply", "export"])
@pytest.mark.parametrize("scheme", ["amqp", "amqps"])
def test_a_missing_management_api_is_reported_with_the_fix_and_no_password(run, write, verb, scheme) -> None:
    arguments = [] if verb == "export" else [write(ORDERS), *(["--yes"] if verb == "apply" else [])]
    where = ["--management-url", f"{scheme.replace('amqp', 'http')}://127.0.0.1:1"]
    found = run(verb, *arguments, "--url", f"{scheme}://me:sesame@127.0.0.1:1/", *where)
    assert (found.code, found.out) == (1, "")
    assert "sesame" not in found.err
    assert "is the broker running there, with the plugin rabbitmq_management?" in found.err
    assert "--amqp-only" in found.err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "AMQP_URL"),
        (["--url", "amqps://127.0.0.1:1/", "--tls-ca-cert-file", "/does/not/exist"], "/does/not/exist"),
        (["--url", "amqps://127.0.0.1:1/", "--pairs", "orders"], "EXCHANGE=FILE"),
    ],
)
def test_what_a_check_lacks_is_named(run, write, options, expected) -> None:
    assert expected in run.refused("check", write(ORDERS), *options)


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ((), "exchange 'orders': it is not there"),
        ((Exchange("orders", "fanout"),), "exchange 'orders': its type there is fanout"),
        ((Exchange("orders", "x-consistent-hash"),), "exchange 'orders': its weights are invalid there"),
    ],
)
def test_a_report_says_why_the_broker_has_no_ring(run, write, live, there, expected) -> None:
    live(Observed(Topology(exchanges=there)))
    options = ("-f", write(ORDERS), "--live", "-U", "amqp://h", "-o", "x.html")
    assert expected in run.refused("report", *options)


def test_a_report_needs_an_exchange_with_a_ring(run, write, live) -> None:
    observed = Observed(loads(SLOTS % 1, format="yaml"))
    live(observed)
    expected = "got 'tenants', expected one of none. Only an x-consistent-hash exchange has a ring"
    file = ("-f", write(SLOTS % 1))
    for options in (file, (*file, "--live", "-U", "amqp://h"), ("-U", "amqp://h")):
        assert expected in run.refused("report", "-x", "tenants", *options, "-o", "x.html")


def test_check_names_the_queues_without_a_majority(run, write, live):
    observed = Observed(loads(ORDERS, format="yaml"), without_majority=("q", "r"))
    live(observed)
    found = run("check", write(ORDERS), "-U", "amqp://h")
    assert "most members of these quorum queues are down" in found.err
    assert ": 'q', 'r'" in " ".join(found.err.split())


def test_the_default_exchange_of_a_broker_routes_to_queues(run, live) -> None:
    live(Observed(Topology(queues=(Queue("q"),))))
    routed = run("route", "q", "other", "-x", "", "-U", "amqp://h").out
    assert routed.split() == ["q", "q", "other", "unroutable"]


@pytest.mark.parametrize("verb", [("route", "k"), ("ring",), ("simulate",)])
def test_an_exchange_that_the_broker_does_not_have_is_named_with_those_that_it_has(run, live, verb) -> None:
    there = (Exchange("orders", "x-consistent-hash"), Exchange("tenants", "fanout"))
    live(Observed(Topology(exchanges=there)))
    expected = "virtual host '/' has no exchange '{}': it has exchanges 'orders', 'tenants'{}"
    for given, hint in (("order", ". Did you mean 'orders'?"), ("x", "")):
        assert expected.format(given, hint) in run.refused(*verb, "-x", given, "-U", "amqp://h", code=1)


def test_pairs_teach_a_ring_or_leave_what_is_possible(run, write, monkeypatch) -> None:
    classic = "queues: {a: {type: classic}, b: {type: classic}, c: {type: classic}}\n"
    file = write("schema: 1\nexchanges: {orders: {type: x-consistent-hash, queues: [c, a, b]}}\n" + classic)
    there = assume_applied(load(file))
    ring = replace(there.rings["orders"], runs=None)
    unknown = replace(there, rings={"orders": ring}, ring_sources={"orders": "unknown"})
    monkeypatch.setenv("AMQP_URL", "amqp://nowhere")
    monkeypatch.setattr(BrokerAccess, "management", NoQueues())
    monkeypatch.setattr("rabbit_chx.cli.ask.broker_access.read", lambda *_, **__: unknown)
    keys = [f"k{number}" for number in range(60)]
    routed = run("route", *keys, "-q", "c", "-q", "a", "-q", "b", "--output", "json").rows
    pairs = [f"{row['key']},{row['queue']}\n" for row in routed]
    enough = write("key,queue\n" + "".join(pairs), "enough.csv")
    learnt = run("check", file, "--pairs", f"orders={enough}", "--verbose")
    assert learnt.code == 0
    assert "inferred from observed messages" in learnt.err
    few = run("check", file, "--pairs", f"orders={write(pairs[0], 'few.csv')}")
    assert few.code == 2
    assert "Possible ring of exchange 'orders', 2 of" in few.err
    assert "orders" in run("check", file, "--pairs", f"nope={enough}").err
    assert run("check", file, "--pairs", "orders=/does/not/exist").code == 64


def test_one_note_names_all_exchanges_whose_order_apply_records(run, write, live, monkeypatch) -> None:
    """Once, adopting a virtual host repeated one note for each of its exchanges."""
    names = ["orders", "payments", "tenants"]
    exchanges = "".join(f"  {name}: {{type: x-consistent-hash, queues: [a, b]}}\n" for name in names)
    file = write(f"schema: 1\nexchanges:\n{exchanges}queues: {{a: {{}}, b: {{}}}}\n")
    observed = replace(assume_applied(loads(file.read_text(), format="yaml")), unrecorded=frozenset(names))
    live(observed)
    monkeypatch.setattr(APPLY, lambda *_, **__: Applied(recorded=tuple(names)))
    found = run("apply", file, "-U", "amqp://h", "--yes")
    listed = "exchanges 'orders', 'payments', 'tenants'"
    assert found.out.count("the broker has no record of the bind order") == 1
    assert f"no record of the bind order of {listed}: `apply` records it" in found.out
    assert f"Recorded the bind order of {listed}." in found.out
    rows = run("apply", file, "-U", "amqp://h", "--yes", "--output", "json").rows
    assert [row["exchange"] for row in rows if row["type"] == "recorded"] == names


def test_queues_without_statistics_are_counted_too(monkeypatch) -> None:
    asked: list[list[str]] = []

    def count(_: object, queues: list[str]) -> dict[str, int]:
        asked.append(queues)
        return dict.fromkeys(queues, 3)

    monkeypatch.undo()  # of the fixture for all tests
    monkeypatch.setattr("rabbit_chx.cli.ask.broker_access.count_messages", count)
    live = SimpleNamespace(amqp_only=False, amqp=lambda _: nullcontext())
    queues = (Queue("new"), Queue("known"), Queue("stream", type="stream"))
    observed = replace(assume_applied(Topology("/", queues=queues)), backlog={"known": 9})
    found = BrokerAccess.recounted(live, observed, {"new", "known", "stream", "gone"})  # type: ignore[arg-type]
    assert (found.backlog, asked) == ({"new": 3, "known": 9}, [["known", "new"]])


# ---- single exchanges, and a second binding that has no effect

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


# ---- list: each trouble with the command that comes next

THERE = Topology(
    exchanges=(Exchange("orders", "x-consistent-hash"),),
    queues=(Queue("a"), Queue("b")),
    bindings=(Binding("orders", "a", "1"), Binding("orders", "b", "1"), Binding("orders", "a", "2")),
)


@pytest.fixture
def broker(live):
    def broker(ring: Ring, **more) -> None:
        observed = Observed(
            THERE,
            rings={"orders": ring},
            ring_sources={"orders": "node"},
            unconsumed=frozenset({"a"}),
            **more,
        )
        live(observed, SimpleNamespace(vhosts=lambda: ["/", "the shop"]))

    return broker


def test_each_trouble_has_its_next_command_and_all_virtual_hosts_are_listed(run, broker) -> None:
    broker(Ring.of({"a": 1}), unrecorded=frozenset({"orders"}), without_majority=("b",))
    found = run("list", "--url", "amqp://host")
    assert found.code == 2
    for kind in ("second-binding", "dead-binding", "no-majority", "no-consumer"):
        assert found.out.count(f"[{kind}]") == 2
    assert "Next: rabbit-chx watch -V 'the shop' -x orders" in found.out
    assert (
        "Next: rabbit-chx export -V 'the shop' --node COMMAND -o FILE && rabbit-chx apply FILE" in found.out
    )
    assert found.out.endswith("2 hash exchanges.\n")


def test_warnings_alone_exit_with_0_and_a_url_names_the_virtual_host(run, broker) -> None:
    broker(Ring.of({"a": 1, "b": 1}))
    found = run("list", "--url", "amqp://host/shop")
    assert found.code == 0
    assert "[second-binding]" in found.out
    assert found.out.endswith("1 hash exchange.\n")
