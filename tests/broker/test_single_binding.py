"""An exchange with a single binding that has no buckets, after its queue was bound twice and unbound once."""

from __future__ import annotations

import pytest

from rabbit_chx import Ring
from tests.broker.erlang import quick_command
from tests.queues import a_channel

pytestmark = [pytest.mark.newest_first, pytest.mark.broker]

KEYS = [f"k{number}" for number in range(50)]
FILE = """
schema: 1
vhost: {vhost!r}
exchanges: {{M: {{type: x-consistent-hash, queues: {{m.0: {weight}}}}}}}
queues: {{m.0: {{type: classic}}}}
"""
BELIEVED = "exchange 'M': the only binding is assumed to have buckets"


@pytest.fixture
def live(site, run, tmp_path):
    """Run a verb on the exchange, or on a file with it."""

    def live(verb: str, *arguments: str, weight: int = 3):
        file = tmp_path / f"{weight}.yaml"
        file.write_text(FILE.format(vhost=site.vhost, weight=weight))
        about = ("-x", "M") if verb in {"route", "ring", "simulate"} else (file,)
        return run(verb, *arguments, *about, "--url", site.url())

    return live


def change_weight(site, old: str, new: str) -> None:
    """Bind with a new weight, then unbind the old one: the broker then has no bucket for the queue."""
    with a_channel(site) as channel:
        channel.exchange_declare("M", "x-consistent-hash", durable=True)
        channel.queue_declare("m.0", durable=True)
        for verb, weight in (("bind", old), ("bind", new), ("unbind", old)):
            getattr(channel, f"queue_{verb}")("m.0", "M", weight)
    assert not site.broker.ring("M", site.vhost)


def test_a_node_shows_it_and_apply_repairs_it(site, live) -> None:
    change_weight(site, "1", "3")
    node = ("--node", quick_command(site.broker))
    for verb in (("check",), ("plan",), ("route", *KEYS), ("ring",)):
        assert BELIEVED in live(*verb).err
    assert "unroutable" in live("route", *KEYS, *node).out
    found = live("check", *node)
    assert found.code == 2
    assert "[dead-binding]" in found.out
    assert live("plan", *node).code == 2
    assert live("apply", "--yes", *node).code == 0
    assert Ring.read(site.broker.ring("M", site.vhost)).runs == (("m.0", 3),)
    for verb in (("check",), ("plan",), ("route", *KEYS), ("check", *node)):
        found = live(*verb)
        assert (found.code, BELIEVED in found.err) == (0, False), found


def test_a_recorded_binding_that_was_replaced_by_one_of_another_weight_is_not_believed(site, live) -> None:
    assert live("apply", "--yes").code == 0
    change_weight(site, "3", "5")
    assert live("route", *KEYS).code == live("ring").code == live("simulate", "--keys", "/dev/null").code == 1
    for verb in ("check", "plan"):
        assert live(verb, weight=5).code == 2
    assert live("apply", "--yes", "--node", quick_command(site.broker), weight=5).code == 0
    assert live("check", weight=5).code == live("route", *KEYS).code == 0
