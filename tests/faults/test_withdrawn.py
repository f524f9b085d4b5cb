"""What a publisher needs is missing or taken away: the broker, the permission, the plugin."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from rabbit_chx.publishing import Outcome, Timeouts
from tests.faults.load import SLACK, killed
from tests.patience import PATIENCE, wait_until
from tests.users import a_user

pytestmark = [pytest.mark.broker, pytest.mark.long]

PLUGIN = "rabbitmq_consistent_hash_exchange"
UNDECIDED = {"outcomes": {Outcome.UNKNOWN, Outcome.UNSENT}, "quiet": 0.5}


def test_a_broker_that_is_down_at_the_start_and_comes_up_later(broker, scene, log):
    harmless = {"control": None, "harmless": "no loss is possible, nothing is accepted before it is up"}
    patient = {"limit": PATIENCE, "timeouts": Timeouts(connect=PATIENCE)}
    with scene("broker down at the start", start=None, quiet=0, **patient, **harmless) as it, killed(broker):
        it.load.start(3_000)
        wait_until(lambda: log("trying again"), "an attempt has failed")
    assert it.totals.connections == 1


@pytest.fixture
def guest(broker):
    with a_user(broker, ".*", ".*", ".*") as user:
        yield user


def test_a_revoked_permission_takes_effect_with_the_next_connection(broker, scene, guest):
    """A channel keeps its permissions until it has been idle for a second.

    rabbit_channel caches permissions in its process dictionary, and clears the cache before it hibernates. A channel also
    hibernates if a busy machine pauses the publisher.
    """
    refused = {"outcomes": {Outcome.UNKNOWN, Outcome.REJECTED}, "quiet": 0.5}
    with scene("write permission taken away", url=guest.url, **refused) as it:
        it.control.flow()
        it.flow(5_000)
        guest.grant(".*", "^$", ".*")
        more = it.totals.confirmed + 5_000
        wait_until(lambda: it.totals.confirmed >= more or it.totals.rejected, "the channel is in use")
        broker.ctl("close_all_user_connections", guest.name, "a test")
        wait_until(lambda: it.totals.rejected, "the broker refuses the publisher")
        it.load.hold()
        wait_until(lambda: it.control.broken >= 2, "the broker refuses the control")
        it.load.finish(SLACK)
    denied = (
        f"403 ACCESS_REFUSED, user '{guest.name}' has no write permission on exchange '{it.used.exchange}'"
    )
    assert any(denied in failure.reply for failure in it.load.bulk.failures)
    assert it.totals.connections <= 2


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


def test_the_plugin_is_disabled_while_publishing(broker, scene):
    with scene("plugin disabled", **UNDECIDED) as it:
        it.control.flow()
        it.flow(5_000)
        with plugin_disabled(broker):
            wait_until(lambda: it.load.error is not None, "the publisher ends")
            wait_until(lambda: it.control.broken >= 2, "the control loses its connection")
            it.load.finish(SLACK)
    assert f"`rabbitmq-plugins enable {PLUGIN}`" in str(it.load.error)
