"""Changes while nodes of a cluster are down: named, and refused at once without a majority."""

from __future__ import annotations

import time
from functools import partial

import pytest

from rabbit_chx import Store
from rabbit_chx.broker.reading.reader import read
from rabbit_chx.topology.checks.cluster import cluster_problems
from tests.faults.load import paused
from tests.patience import wait_until
from tests.proof import Check, record_result
from tests.verbs import run_verb

pytestmark = [pytest.mark.broker, pytest.mark.long]

SHORT = {
    "test_changes_with_one_and_with_two_nodes_down",
    "test_changes_in_a_cluster_of_two_with_one_node_down",
    "test_a_silent_node_is_named_before_the_broker_counts_it_as_down",
}
AT_ONCE = 20.0
"""Seconds in which a refusal has come, on a loaded machine too; a broker without a majority answers a declaration after 30."""
TRIES = 3
"""How often a verb may be slower: load passes, and waiting for a broker does not."""
TOPOLOGY = """
schema: 1
vhost: "VHOST"
exchanges:
  orders: {type: x-consistent-hash, queues: [QUEUES]}
  tenants: {type: x-consistent-hash, slots: 4, queues: [a, b]}
queues: {a: {type: quorum}, b: {type: quorum}, c: {type: quorum}}
"""


@pytest.fixture
def run(cluster, site, monkeypatch, capsys):
    member = cluster.members[0]
    monkeypatch.setenv("AMQP_URL", site.url(member))
    monkeypatch.setenv("RABBITMQ_MANAGEMENT_URL", member.management_url)
    return partial(run_verb, capsys)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "topology.yaml"


@pytest.fixture
def alone(cluster, site):
    """The first node, which serves even if all others are down; in this cluster, it would pause on Mnesia."""
    member = cluster.members[0]
    handling = "application:set_env(rabbit, cluster_partition_handling, {})."
    member.eval(handling.format("ignore"))  # the default of RabbitMQ
    yield member
    member.eval(handling.format("pause_minority"))


def write(site, file, queues: str) -> None:
    """Write the topology with these queues of the ring."""
    file.write_text(TOPOLOGY.replace("VHOST", site.vhost).replace("QUEUES", queues))


def wait_for_down(site, asked, count: int) -> None:
    def seen() -> bool:
        nodes = site.management(asked).nodes()
        return sum(not state.running for state in nodes.values()) == count

    wait_until(seen, f"nodes that are down: {count}")


def test_changes_with_one_and_with_two_nodes_down(cluster, site, alone, run, file) -> None:
    _, second, third = cluster.members
    write(site, file, "a")
    assert run("apply", file, "--yes").code == 0
    assert "nodes" not in run("check", file).err

    third.node.halt()
    wait_for_down(site, alone, 1)
    name = f"rabbit@{third.name} is down: the cluster runs on 2 of its 3 nodes"
    write(site, file, "a, b")
    changed = run("apply", file, "--yes")
    assert changed.code == 0, changed.err
    assert name in changed.err
    assert name in run("check", file).err
    found = {row["name"]: row for row in run("doctor", "--output", "json").rows}
    assert found["cluster"]["state"] == "failed"
    assert name in found["cluster"]["found"]

    second.node.halt()
    wait_for_down(site, alone, 2)
    lost = list(cluster_problems(read(site.management(alone), site.vhost)))
    assert any("these quorum queues" in each and "'a', 'b'" in each for each in lost), lost
    down = f"rabbit@{second.name} and rabbit@{third.name} are down"
    check_list(site, run, down)
    check_changes(cluster, site, run, file, 3, down)


@pytest.mark.proof
def test_changes_in_a_cluster_of_two_with_one_node_down(cluster, site, alone, run, file) -> None:
    _, second, third = cluster.members
    for command in ("stop_app", "reset"):
        third.ctl(command)
    try:
        write(site, file, "a")
        assert run("apply", file, "--yes").code == 0
        second.node.halt()
        wait_for_down(site, alone, 1)
        check_changes(cluster, site, run, file, 2, f"rabbit@{second.name} is down")
    finally:
        second.node.boot()
        second.node.up()
        third.ctl("join_cluster", f"rabbit@{alone.name}")
        third.ctl("start_app")
        cluster.run()


def check_list(site, run, name: str) -> None:
    """`list` names the nodes that are down, and the queues without a majority with the next command."""
    found = run("list", "--url", site.url(site.cluster.members[0]), "--output", "json")
    assert found.code == 2
    assert name in found.err
    troubles = [each for row in found.rows for each in row["troubles"] if row["exchange"] == "orders"]
    lost = [each for each in troubles if each["kind"] == "no-majority"]
    assert [each["where"] for each in lost] == [f"queue {queue!r} behind exchange 'orders'" for queue in "ab"]
    assert {(each["warning"], each["next"]) for each in lost} == {(False, "rabbit-chx doctor")}


def check_changes(cluster, site, run, file, nodes: int, name: str) -> None:
    """With a single node left, a change on Khepri is refused at once, and one on Mnesia is made."""
    write(site, file, "a, b, c")
    planned = run("plan", file, "--output", "json")
    assert f"{name}: the cluster runs on 1 of its {nodes} nodes" in planned.err
    if site.release.store is Store.KHEPRI:
        check_refusals(cluster, run, file, nodes)
        return
    changed = run("apply", file, "--yes")
    assert changed.code == 0, changed.err
    assert name in changed.err
    assert run("check", file).code == 0


def check_refusals(cluster, run, file, nodes: int) -> None:
    """Each verb says at once that a majority is missing, and those that change refuse."""
    longest = 0.0
    keys = file.with_name("keys.txt")
    keys.write_text("".join(f"key-{number}\n" for number in range(1000)))
    for verb, code in (
        (("apply", file, "--yes"), 1),
        (("plan", file), 1),
        (("scale", file, "-x", "orders", "--to", "4", "--yes"), 1),
        (("rebalance", file, "-x", "tenants", "--capacity", "a=3", "--keys", keys, "--yes"), 1),
        (("check", file), 2),
        (("doctor",), 1),
    ):
        taken = []
        while not taken or (taken[-1] >= AT_ONCE and len(taken) < TRIES):
            started = time.monotonic()
            refused = run(*verb)
            taken.append(time.monotonic() - started)
        longest = max(longest, min(taken))
        assert refused.code == code, (verb, refused)
        said = f"changes nothing without a majority of its {nodes} nodes"
        if code == 2:
            said = f"1 of its {nodes} nodes"
        assert said in " ".join((refused.out + refused.err).split()), (verb, refused)
    what = f"plan, apply, scale, rebalance, check and doctor on one of {nodes} nodes, without a majority"
    seen = f"the longest took {longest:.1f} seconds; the change itself works with one of three nodes down"
    record_result(Check("Topology", what, cluster.version, 6, 0, longest, seen))
    assert longest < AT_ONCE


def test_a_silent_node_is_named_before_the_broker_counts_it_as_down(cluster, site, run, file) -> None:
    write(site, file, "a, b")
    assert run("apply", file, "--yes").code == 0
    write(site, file, "a, b, c")
    asked, silent, third = cluster.members
    for member in (asked, third):  # long enough for any machine
        member.eval("net_kernel:set_net_ticktime(300, 0).")
    try:
        for verb in (["apply", file, "--yes"], ["scale", file, "--status"]):
            with paused(silent.node):
                refused = run(*verb)
            assert (refused.code, refused.out) == (1, "")
            assert "is silent: it has crashed, hangs or is cut off" in refused.err
            cluster.run()  # which may have counted the node as down since
    finally:
        for member in (asked, third):
            member.eval("net_kernel:set_net_ticktime(8, 0).")


@pytest.mark.parametrize("member", [0, 2])
def test_an_alarm_of_any_node_refuses_what_publishes(cluster, site, run, file, member) -> None:
    alarmed = cluster.members[member]

    def seen(*alarms: str) -> bool:
        nodes = site.management(cluster.members[0]).nodes()
        return nodes[f"rabbit@{alarmed.name}"].alarms == alarms

    write(site, file, "a, b")
    assert run("apply", file, "--yes").code == 0
    alarmed.ctl("set_vm_memory_high_watermark", "absolute", "1")
    try:
        wait_until(lambda: seen("memory"), "the alarm is on")
        name = f"rabbit@{alarmed.name} has a memory alarm"
        assert name in run("check", file).err
        refused = run("scale", file, "-x", "orders", "--to", "3", "--yes")
        assert refused.code == 1
        assert "has a memory or disk alarm" in refused.err
        assert run("check", file).code == 0  # nothing was changed
        write(site, file, "a, b, c")
        changed = run("apply", file, "--yes")  # publishes nothing
        assert changed.code == 0, changed.err
        assert name in changed.err
    finally:
        alarmed.ctl("set_vm_memory_high_watermark", "0.6")
    wait_until(seen, "the alarm is off")
