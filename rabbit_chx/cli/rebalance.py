"""``rabbit-chx rebalance``: measure the load of each slot, and move the fewest slots for an even load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import sqrt

import click

from rabbit_chx.base.text import counted
from rabbit_chx.cli.ask.broker_access import BrokerAccess, topology_options
from rabbit_chx.cli.ask.options import check_names, exchange_option, keys_option, output_option, raw_option
from rabbit_chx.cli.carry_out import carry_out_plans, print_unfinished, refused
from rabbit_chx.cli.changes import agreed, check_can_ask, confirmed, print_plan, warn_of_cluster
from rabbit_chx.cli.plan import parse_new_weight
from rabbit_chx.cli.show.output import echo, notice
from rabbit_chx.cli.show.rebalance_output import Proposal, print_proposal
from rabbit_chx.cli.slot_load import count_keys, measure
from rabbit_chx.cli.verb import Exit, FloatRange, option, verb
from rabbit_chx.errors import InvalidValue, RabbitChxError
from rabbit_chx.topology.model import Observed, Slots, Topology
from rabbit_chx.topology.planning.slot_changes import (
    move_rounds,
    plan_moves,
    queue_of_slots,
    slots_behind,
    unfinished_moves,
)
from rabbit_chx.topology.planning.steps import Plan
from rabbit_chx.topology.slots.rebalancing import Rebalancing, check_target, rebalance as find_moves
from rabbit_chx.topology.slots.slot_counts import SlotCounts


@verb(
    examples=[
        "rabbit-chx rebalance topology.yaml -x tenants \\\n    --node 'docker exec NAME rabbitmqctl eval'",
        "rabbit-chx rebalance topology.yaml -x tenants --sample 60 --target 1.1 --yes",
        "cut -f1 orders.tsv | rabbit-chx rebalance topology.yaml -x tenants \\\n    --keys - --dry-run",
    ],
    exit_codes={
        Exit.FINE: "no moves needed, or all are done",
        Exit.FAILED: "refused, declined or failed; nothing was changed",
        Exit.DIFFERENT: "with --dry-run: moves proposed, or a change is unfinished",
        Exit.PARTLY: "a change is unfinished, this one or an earlier one, or only an earlier one was finished: the same command "
        "continues",
    },
)
@topology_options
@exchange_option(help="The exchange with slots, if the file has several.")
@option(
    "--target",
    type=float,
    default=1.2,
    show_default=True,
    metavar="RATIO",
    help="The highest allowed load of a queue, as a multiple of its fair share (max/mean).",
)
@option(
    "--capacity",
    "capacities",
    multiple=True,
    metavar="NAME=CAPACITY",
    callback=check_names,
    help="The relative capacity of a queue; the others then have 1. By default, the weights in FILE are the capacities, "
    "but if they add up to the number of slots, they are slot counts, and all queues are equal.",
)
@option(
    "--sample",
    type=FloatRange(1, 3600),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to trace messages. The tracer of the virtual host must be on (rabbitmqctl trace_on); --node turns it on "
    "for this long, on all nodes.",
)
@keys_option(help="Count these keys instead, one per line; - is stdin.")
@raw_option
@option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@option("--dry-run", is_flag=True, help="Show the moves and change nothing.")
@output_option
def rebalance(
    *,
    topologies: tuple[Topology, ...],
    live: BrokerAccess,
    exchange: str | None,
    target: float,
    capacities: tuple[str, ...],
    sample: float,
    keys_file: str | None,
    raw: bool,
    yes: bool,
    dry_run: bool,
    output: str,
) -> int:
    """Measure the load of each slot, and move the fewest slots for an even load, while members of a Group consume.

    Every key keeps its order, as with `scale`: queues that gain keys are held until those that lose keys are drained.
    After an interruption, run the same command again to continue. The broker does not count the messages of slots, so `rebalance` traces messages for a while: the broker publishes a
    copy of each message, and the mirror computes its slot.
    """
    if live.amqp_only:
        raise click.UsageError("rebalance needs the bindings of slots, which --amqp-only cannot list")
    hint = "--dry-run shows what would be done"
    check_target(target)
    check_can_ask("rebalance", "--yes or --dry-run", hint, yes=yes or dry_run)
    wanted, name = _choose(topologies, exchange)
    slots = slots_behind(wanted, name)
    capacity = _capacity(slots, capacities)
    _refuse_pairs(wanted, name)
    unfinished = print_unfinished(live, wanted, {name})
    failed = Exit.PARTLY if unfinished else Exit.FAILED
    with _named_if_unfinished(lambda: failed, unfinished=unfinished):
        observed = live.read(wanted)
        warn_of_cluster(observed)
        if left := unfinished_moves(slots, observed):
            notice(
                "Note",
                f"slots with two queues are moved first, as an interrupted change began: {', '.join(left)}",
            )
        if dry_run and left:
            print_plan(plan_moves(wanted, name, left, observed), output)
            return Exit.DIFFERENT
        if (unfinished or left) and not dry_run:
            if not confirmed("Finish the interrupted change?", yes=yes):
                return Exit.PARTLY
            if code := _finish(live, wanted, name, slots, output, more=unfinished):
                return max(code, failed)
            failed = Exit.PARTLY
            observed = live.read(wanted)
        queue_of = queue_of_slots(slots, observed)
        counts, seconds, elsewhere = SlotCounts(slots, wanted, observed), 0.0, 0
        if keys_file is not None:
            count_keys(counts, keys_file, raw=raw)
        else:
            seconds, elsewhere = measure(live, observed, name, queue_of, counts, sample)
            _check_predicted(counts, elsewhere)
        found = find_moves(counts.of_slot, queue_of, capacity, target)
        print_proposal(Proposal(slots, capacity, queue_of, counts, found, seconds), output)
        _print_doubts(found, counts, elsewhere)
        plans = _print_plans(found, wanted, name, observed, output)
        if any(plan.refusals for plan in plans):
            return refused(failed, unfinished=unfinished)
        if dry_run:
            return Exit.DIFFERENT if unfinished or plans else Exit.FINE
        if plans and not agreed(*plans, yes=yes):
            return refused(failed, unfinished=unfinished)
        if unfinished and not plans:
            plans = [Plan(wanted.vhost)]  # deletes the record of the change
        code = carry_out_plans(live, plans, output, exchange=name)
        return code and max(code, failed)


def _finish(
    live: BrokerAccess, wanted: Topology, exchange: str, slots: Slots, output: str, *, more: bool
) -> Exit:
    """Finish an interrupted change, which left queues held, or slots with both an old and a new queue.

    With ``more``, its record is kept until the moves of this command are made.
    """
    if code := carry_out_plans(live, [Plan(wanted.vhost)], output, more=True):
        return code
    observed = live.read(wanted)
    left = unfinished_moves(slots, observed)
    plans = [plan_moves(wanted, exchange, left, observed)] if left else []
    return carry_out_plans(live, plans, output, more=more, exchange=exchange)


@contextmanager
def _named_if_unfinished(failed: Callable[[], Exit], *, unfinished: bool) -> Iterator[None]:
    """After an error, say what finishes the change that another command began, if there is one, and exit."""
    try:
        yield
    except (RabbitChxError, click.ClickException) as error:
        if failed() == Exit.FAILED:
            raise
        notice("Error", str(error))
        click.get_current_context().exit(refused(failed(), unfinished=unfinished))


def _choose(topologies: tuple[Topology, ...], exchange: str | None) -> tuple[Topology, str]:
    """The topology and the exchange with slots: the named one, or the only one."""
    having = [(wanted, slots.exchange) for wanted in topologies for slots in wanted.slots]
    if exchange is None and len(having) != 1:
        names = " and ".join(name for _, name in having) or "no exchange with slots"
        raise click.UsageError(f"--exchange is required: the file has {names}")
    chosen = [pair for pair in having if exchange in (None, pair[1])]
    if len(chosen) > 1:
        raise click.UsageError(
            f"several virtual hosts have an exchange {exchange!r}: choose one with --vhost"
        )
    return chosen[0] if chosen else (topologies[0], str(exchange))


def _refuse_pairs(wanted: Topology, exchange: str) -> None:
    for pair in wanted.co_partitioned:
        if exchange in pair:
            raise InvalidValue(
                "exchange",
                exchange,
                "one without co-partitioned-with",
                f"{' and '.join(map(repr, pair))} must send a key to queues of the same number, and moved slots would part them",
            )


def _capacity(slots: Slots, capacities: tuple[str, ...]) -> dict[str, int]:
    if not capacities:
        return dict.fromkeys(slots.queues, 1) if slots._has_counts else dict(slots.queues)
    given = dict(parse_new_weight(each, "--capacity") for each in capacities)
    for queue in given:
        if queue not in slots.queues:
            raise InvalidValue(
                "queue of --capacity",
                queue,
                f"a queue of exchange {slots.exchange!r}: {', '.join(slots.queues)}",
            )
    return dict.fromkeys(slots.queues, 1) | given


def _check_predicted(counts: SlotCounts, elsewhere: int) -> None:
    """Refuse to divide the load if no message reached the predicted queue."""
    if elsewhere and not counts.total:
        expected = "messages that reach the predicted queue"
        hint = f"{counted(elsewhere, 'message')} did not: `rabbit-chx parity` compares the mirror with the broker"
        raise InvalidValue("load", 0, expected, hint)


def _print_doubts(found: Rebalancing, counts: SlotCounts, elsewhere: int) -> None:
    """Print the reasons to doubt the measurement, on standard error."""
    error = 2 * sqrt((len(found.before) - 1) / counts.total)
    if error > (found.target - 1) / 2:
        notice(
            "Note",
            f"a sample of {counted(counts.total, 'message')} is small: by chance alone, the load of a queue may appear {error:.0%} higher or "
            "lower than it is",
        )
    if elsewhere:
        share = elsewhere / (elsewhere + counts.total)
        notice(
            "Warning",
            f"{counted(elsewhere, 'message')} ({share:.1%}) did not reach the predicted queue (not counted): "
            "`rabbit-chx parity` compares the mirror with the broker",
        )


def _print_plans(
    found: Rebalancing, wanted: Topology, exchange: str, observed: Observed, output: str
) -> list[Plan]:
    """Print and return the plan of each round."""
    rounds = move_rounds(found.moves)
    plans = []
    for number, moves in enumerate(rounds, start=1):
        plan = plan_moves(wanted, exchange, {move.slot: move.to_queue for move in moves}, observed)
        plans.append(plan)
        if len(rounds) > 1 and output == "table":
            echo(f"Round {number} of {len(rounds)} (in a single round, queues would wait for each other):")
        print_plan(plan, output, keeps_order=True)
    return plans
