"""Changes while nodes of a cluster are down: named, and refused at once without a majority."""

from __future__ import annotations

import time

import pytest

from rabbit_chx import Store
from rabbit_chx.broker.reading.reader import read
from rabbit_chx.cli import _exit_code
from rabbit_chx.topology.checks.cluster import cluster_problems
from tests.faults.load import wait_until
from tests.proof import record_result
from tests.verbs import Result

pytestmark = [pytest.mark.broker, pytest.mark.long]

SHORT = {"test_changes_with_one_and_with_two_nodes_down"}
TOPOLOGY = """
schema: 1
vhost: "VHOST"
exchanges:
  orders: {type: x-consistent-hash, queues: [QUEUES]}
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
    name = f"rabbit@{third.name} is down: 2 of the 3 nodes of the cluster run"
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
        started = time.monotonic()
        refused = run("apply", file, "--yes")
        seconds = time.monotonic() - started
        record_result(
            f"cluster: apply without a majority, {cluster.version}: refused in {seconds:.1f} seconds"
        )
        assert refused.code == 1
        assert "changes nothing without a majority of its 3 nodes" in refused.err
    assert (
        f"rabbit@{second.name} and rabbit@{third.name} are down" in run("plan", file, "--output", "json").err
    )
