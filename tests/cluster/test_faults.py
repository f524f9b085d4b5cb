"""A cluster of three nodes loses one, or its network, while messages are published: nothing confirmed is lost, no key moves.

RABBIT_CHX_CLUSTER_RELEASES=4.0,4.3 RABBIT_CHX_CLUSTER_ROUNDS=10 pytest tests/cluster/test_faults.py
"""

from __future__ import annotations

import pytest

from rabbit_chx import Store
from tests.cluster.fire import SLOW, Fire
from tests.cluster.nodes import Member
from tests.faults.load import ALIVE

pytestmark = [pytest.mark.broker, pytest.mark.long]

SHORT = {"test_the_leader_is_killed"}


@pytest.fixture
def start_fire(site):
    """start_fire(scenario) returns the publishers of a scenario."""
    started: list[Fire] = []

    def start_fire(scenario: str) -> Fire:
        started.append(Fire(site, scenario))
        return started[-1]

    yield start_fire
    for fire in started:
        fire.abandon()


def test_the_leader_is_killed(cluster, start_fire, judge):
    fire = start_fire("leader killed")
    for first in fire.rounds():
        victim = fire.leader(ask=first)
        control = fire.control(victim)
        fire.flow(control)
        fire.jam(control, victim)
        victim.kill()
        fire.broke_out()
        control.hold()
        fire.flows()
        fire.until_a_new_leader(victim)
        fire.hold()
        cluster.boot(victim)
        cluster.whole()
        fire.account(control)
    fire.judge(judge)


def test_a_minority_is_cut_off(cluster, site, start_fire, judge):
    """Clients still reach the node. On Khepri they wait there; on Mnesia the node closes their connections."""
    fire = start_fire("minority cut off")
    stays = site.release.store is Store.KHEPRI
    for victim in fire.rounds():
        control = fire.control(victim, heartbeat=0)
        fire.flow(control)
        victim.node.cut()
        fire.broke_out()
        if not stays:
            control.until_broken(SLOW)
        control.hold()
        fire.flows(fire.slotted)
        cluster.alone(victim)
        fire.hold()
        victim.node.heal()
        fire.recover(victim)
        fire.flow()
        if stays:
            fire.settle(control)
        fire.account(control)
    fire.judge(judge, harmless=ALIVE if stays else "")


def test_a_minority_is_cut_off_and_dies(cluster, start_fire, judge):
    fire = start_fire("minority cut off, then killed")
    for victim in fire.rounds():
        control = fire.control(victim)
        fire.flow(control)
        victim.node.cut()
        fire.broke_out()
        control.flood()
        fire.flows(fire.slotted)
        victim.kill()
        control.hold()
        fire.flows()
        fire.hold()
        victim.node.heal()
        cluster.boot(victim)
        fire.recover(victim)
        fire.account(control)
    fire.judge(judge)


def test_every_node_is_cut_off_from_the_others(cluster, site, start_fire, judge):
    """On Mnesia all nodes close their connections and stop, and the first that starts rebuilds the rings."""
    fire = start_fire("all links between nodes cut")
    stays = site.release.store is Store.KHEPRI
    for victim in fire.rounds():
        control = fire.control(victim, heartbeat=0)
        fire.flow(control)
        for member in cluster.members:
            member.node.cut()
        fire.broke_out()
        fire.stalls()
        cluster.alone(*cluster.members)
        if not stays:
            control.until_broken(SLOW)
        control.hold()
        for member in cluster.members:
            member.node.heal()
        fire.flows()
        fire.hold()
        fire.recover(victim)
        if stays:
            fire.settle(control)
        fire.account(control)
    fire.judge(judge, harmless=ALIVE if stays else "")


HANGS = {
    "node without any network": (
        lambda victim: victim.node.cut(clients=True), lambda victim: victim.node.heal(clients=True), {}
    ),
    "node paused": (Member.pause, Member.unpause, {"size": 20_000}),
}  # fmt: skip


@pytest.mark.parametrize("scenario", HANGS)
def test_a_node_is_not_heard_of(start_fire, judge, scenario):
    """A paused node of Mnesia that continues believes for a while to be in the majority."""
    begin, end, options = HANGS[scenario]
    fire = start_fire(scenario)
    for victim in fire.rounds():
        control = fire.control(victim, **options)
        fire.flow(control)
        begin(victim)
        fire.broke_out()
        try:
            control.until_broken(SLOW)
            control.hold()
            fire.flows()
            fire.hold()
        finally:
            end(victim)
        fire.recover(victim)
        fire.account(control)
    fire.judge(judge)


def test_a_rolling_restart(cluster, start_fire, judge):
    fire = start_fire("rolling restart")
    for first in fire.rounds():
        for victim in cluster.in_turn(first):
            control = fire.control(victim)
            fire.flow(control)
            fire.jam(control, victim)
            victim.node.halt()
            fire.broke_out()
            control.hold()
            fire.flows()
            cluster.boot(victim)
            cluster.whole()  # necessary before the next node is restarted
            fire.account(control)
    fire.judge(judge)
