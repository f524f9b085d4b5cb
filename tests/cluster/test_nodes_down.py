"""Changes while nodes of a cluster are down: named, and refused at once without a majority."""

from __future__ import annotations

import time

import pytest

from rabbit_chx import Store
from rabbit_chx.broker.reading.reader import read
from rabbit_chx.cli import _exit_code
from rabbit_chx.topology.checks.cluster import cluster_problems
from tests.faults.load import wait_until
from tests.proof import Check, record_result
from tests.verbs import Result

pytestmark = [pytest.mark.broker, pytest.mark.long]

SHORT = {
    "test_changes_with_one_and_with_two_nodes_down",
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

    def run(*arguments: object) -> Result:
        capsys.readouterr()
        code = _exit_code(list(map(str, arguments)))
        return Result(code, *capsys.readouterr())

    return run


def test_changes_with_one_and_with_two_nodes_down(cluster, site, run, tmp_path) -> None:
    file = tmp_path / "topology.yaml"

    def write(queues: str) -> None:
        file.write_text(TOPOLOGY.replace("VHOST", site.vhost).replace("QUEUES", queues))

    def seen_down(count: int) -> bool:
        nodes = site.management(asked).nodes()
        return sum(not state.running for state in nodes.values()) == count

    asked, second, third = cluster.members
    write("a")
    assert run("apply", file, "--yes").code == 0
    assert "nodes" not in run("check", file).err

    third.node.halt()
    wait_until(lambda: seen_down(1), "one node is down", 60)
    name = f"rabbit@{third.name} is down: the cluster runs on 2 of its 3 nodes"
    write("a, b")
    changed = run("apply", file, "--yes")
    assert changed.code == 0, changed.err
    assert name in changed.err
    assert name in run("check", file).err
    found = {row["name"]: row for row in run("doctor", "--output", "json").rows}
    assert found["cluster"]["state"] == "failed"
    assert name in found["cluster"]["found"]

    second.node.halt()
    wait_until(lambda: seen_down(2), "two nodes are down", 60)
    lost = list(cluster_problems(read(site.management(asked), site.vhost)))
    assert any("these quorum queues" in each and "'a', 'b'" in each for each in lost), lost
    write("a, b, c")
    if site.release.store is Store.KHEPRI:
        _check_refusals(cluster, run, file)
    assert (
        f"rabbit@{second.name} and rabbit@{third.name} are down" in run("plan", file, "--output", "json").err
    )


def _check_refusals(cluster, run, file) -> None:
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
        said = "1 of its 3 nodes" if code == 2 else "changes nothing without a majority of its 3 nodes"
        assert said in " ".join((refused.out + refused.err).split()), (verb, refused)
    what = "plan, apply, scale, rebalance, check and doctor without a majority of the nodes"
    seen = f"the longest took {longest:.1f} seconds; the change itself works with one node down"
    record_result(Check("Topology", what, cluster.version, 6, 0, longest, seen))
    assert longest < AT_ONCE


def test_a_silent_node_is_named_before_the_broker_counts_it_as_down(cluster, site, run, tmp_path) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text(TOPOLOGY.replace("VHOST", site.vhost).replace("QUEUES", "a, b"))
    assert run("apply", file, "--yes").code == 0
    file.write_text(file.read_text().replace("[a, b]", "[a, b, c]"))
    asked, silent, third = cluster.members
    for member in (asked, third):  # long enough for any machine
        member.eval("net_kernel:set_net_ticktime(300, 0).")
    try:
        silent.node.pause()
        refused = run("apply", file, "--yes")
    finally:
        silent.node.unpause()
        for member in (asked, third):
            member.eval("net_kernel:set_net_ticktime(8, 0).")
    assert (refused.code, refused.out) == (1, "")
    assert "is silent: it has crashed, hangs or is cut off" in refused.err


@pytest.mark.parametrize("member", [0, 2])
def test_an_alarm_of_any_node_refuses_what_publishes(cluster, site, run, tmp_path, member) -> None:
    file = tmp_path / "topology.yaml"
    alarmed = cluster.members[member]

    def seen(*alarms: str) -> bool:
        nodes = site.management(cluster.members[0]).nodes()
        return nodes[f"rabbit@{alarmed.name}"].alarms == alarms

    file.write_text(TOPOLOGY.replace("VHOST", site.vhost).replace("QUEUES", "a, b"))
    assert run("apply", file, "--yes").code == 0
    alarmed.ctl("set_vm_memory_high_watermark", "absolute", "1")
    try:
        wait_until(lambda: seen("memory"), "the alarm is on", 60)
        name = f"rabbit@{alarmed.name} has a memory alarm"
        assert name in run("check", file).err
        refused = run("scale", file, "-x", "orders", "--to", "3", "--yes")
        assert refused.code == 1
        assert "has a memory or disk alarm" in refused.err
        assert run("check", file).code == 0  # nothing was changed
        file.write_text(file.read_text().replace("[a, b]", "[a, b, c]"))
        changed = run("apply", file, "--yes")  # publishes nothing
        assert changed.code == 0, changed.err
        assert name in changed.err
    finally:
        alarmed.ctl("set_vm_memory_high_watermark", "0.6")
    wait_until(seen, "the alarm is off", 60)
