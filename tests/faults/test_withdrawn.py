"""What a publisher needs is missing or taken away: the broker, the permission, the plugin."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from rabbit_chx.publishing import Outcome, Timeouts
from tests.faults.load import PATIENCE, Control, Load, wait_until

pytestmark = pytest.mark.broker

PLUGIN = "rabbitmq_consistent_hash_exchange"


def test_a_broker_that_is_down_at_the_start_and_comes_up_later(broker, topology, judge, caplog):
    used = topology()
    caplog.set_level("INFO", "rabbit_chx.publisher")
    broker.kill()
    try:
        load = Load(broker.url, used.exchange, timeouts=Timeouts(connect=PATIENCE)).start(3_000)
        wait_until(lambda: caplog.text.count("trying again") >= 3, "three attempts have failed")
    finally:
        broker.restart()
    load.finish(PATIENCE)
    load.drain(broker.url, used.queues)

    assert load.error is None
    assert load.ledger.outcomes == {}
    assert load.publisher.totals.connections == 1
    judge(
        "broker down at the start", load, harmless="no loss is possible, nothing is taken in before it is up"
    )


@pytest.fixture
def guest(broker):
    """A user with all permissions."""
    name, password = "guest-of-a-test", secrets.token_hex(8)
    broker.ctl("add_user", name, password)
    broker.ctl("set_permissions", name, ".*", ".*", ".*")
    parts = urlsplit(broker.url)
    yield name, f"amqp://{name}:{password}@{parts.hostname}:{parts.port}/"
    broker.ctl("delete_user", name)


def test_a_revoked_permission_takes_effect_with_the_next_connection(broker, topology, judge, guest):
    """A channel keeps what it was once allowed (rabbit_channel caches permissions in its process dictionary)."""
    used, other = topology(), topology()
    name, url = guest
    control = Control(url, other.exchange)
    control.start()
    load = Load(url, used.exchange).start()
    load.flow()
    load.until_confirmed(5_000)
    broker.ctl("set_permissions", name, ".*", "^$", ".*")
    load.until_confirmed(5_000)
    broker.ctl("close_all_user_connections", name, "a test")
    wait_until(lambda: load.error is not None, "the broker refuses the publisher")
    wait_until(lambda: control.broken >= 2, "and the control")
    load.finish(5)
    load.drain(broker.url, used.queues, quiet=0.5)
    loss = control.finish(broker.url, other.queues)

    assert f"403 ACCESS_REFUSED, user '{name}' has no write permission on exchange '{used.exchange}'" in str(
        load.error
    )
    assert load.publisher.totals.connections == 2
    assert set(load.ledger.outcomes.values()) <= {Outcome.UNKNOWN, Outcome.UNSENT}
    judge("write permission taken away", load, control=loss)


@contextmanager
def plugin_disabled(broker):
    """Disable the plugin as `rabbitmq-plugins disable` does, through another file of enabled plugins."""
    own = broker.eval(
        "{ok, File} = application:get_env(rabbit, enabled_plugins_file), io:format(File), done."
    )
    own = own.splitlines()[0].removesuffix("done")
    use = "application:set_env(rabbit, enabled_plugins_file, File), {ok, _, _} = rabbit_plugins:ensure(File)"
    broker.eval(
        f'File = filename:join(rabbit:data_dir(), enabled_for_now), {{ok, [Enabled]}} = file:consult("{own}"), '
        f"ok = file:write_file(File, io_lib:format(\"~p.\", [Enabled -- ['{PLUGIN}']])), {use}."
    )
    try:
        yield
    finally:
        broker.eval(f'File = "{own}", {use}.')


@pytest.mark.long
def test_the_plugin_is_disabled_while_publishing(broker, topology, judge):
    used, other = topology(), topology()
    control = Control(broker.url, other.exchange)
    control.start()
    load = Load(broker.url, used.exchange).start()
    load.flow()
    load.until_confirmed(5_000)
    with plugin_disabled(broker):
        wait_until(lambda: load.error is not None, "the publisher ends")
        wait_until(lambda: control.broken >= 2, "the control notices")
        load.finish(5)
    load.drain(broker.url, used.queues, quiet=0.5)
    loss = control.finish(broker.url, other.queues)

    assert f"`rabbitmq-plugins enable {PLUGIN}`" in str(load.error)
    assert set(load.ledger.outcomes.values()) <= {Outcome.UNKNOWN, Outcome.UNSENT}
    judge("plugin disabled", load, control=loss)
