"""Print the load of queues and the moves of slots, as tables or as JSON lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rabbit_chx.base.text import counted
from rabbit_chx.cli.show.output import echo, print_json
from rabbit_chx.cli.show.tables import Table, show
from rabbit_chx.topology.file.dump import yaml_text
from rabbit_chx.topology.file.names import literal
from rabbit_chx.topology.model import Slots
from rabbit_chx.topology.slots.rebalancing import Rebalancing
from rabbit_chx.topology.slots.slot_counts import SlotCounts
from rabbit_chx.topology.slots.slot_division import quotas

_LITTLE: Final = 0.05
"""A gain, in fair shares of a queue, that is hardly worth moving keys for."""


@dataclass(frozen=True)
class Proposal:
    """A measured load, and the moves that even it out."""

    slots: Slots
    capacity: dict[str, int]
    queue_of: dict[str, str]
    counts: SlotCounts
    found: Rebalancing
    seconds: float
    """The length of the sample; 0 for a file of keys."""

    @property
    def new_weights(self) -> dict[str, int] | None:
        """The weights to write into the file; None if those of the file describe the new division too."""
        after = self.found.slots
        return None if quotas(self.slots.count, self.slots.queues, after) == after else after


def print_proposal(proposal: Proposal, output: str) -> None:
    """Print everything but the steps."""
    (_print_as_json if output == "json" else _print)(proposal)


def _print_as_json(proposal: Proposal) -> None:
    found, counts = proposal.found, proposal.counts
    for queue, before in found.before.items():
        after = found.after[queue]
        print_json(
            "queue",
            queue=queue,
            weight=proposal.capacity[queue],
            slots=before.slots,
            load=before.share,
            over_fair_share=before.level,
            slots_after=after.slots,
            load_after=after.share,
            over_fair_share_after=after.level,
        )
    for move in found.moves:
        print_json("move", slot=move.slot, queue=move.from_queue, to=move.to_queue, load=move.share)
    for slot, share in found.hot.items():
        key, times = counts.hottest_key(slot)
        print_json(
            "hot_slot",
            slot=slot,
            queue=proposal.queue_of[slot],
            load=share,
            key=key,
            key_load=times / counts.total,
        )
    print_json(
        "rebalancing",
        exchange=proposal.slots.exchange,
        messages=counts.total,
        seconds=proposal.seconds or None,
        target=found.target,
        max_over_mean=found.max_before,
        max_over_mean_after=found.max_after,
        met=found.met,
        load_moved=found.share,
        fewest=found.fewest,
        weights=proposal.new_weights,
    )


def _print(proposal: Proposal) -> None:
    found = proposal.found
    numbers = ("slots", "load", "of fair share", "slots after", "load after", "of fair share after")
    shown = Table("queue", *numbers, right=numbers)
    for queue, before in found.before.items():
        cells: list[str] = []
        for each in (before, found.after[queue]):
            cells += [str(each.slots), f"{each.share:.2%}", f"{each.level:.2f}"]
        shown.add_row(queue, *cells, before.share)
    moves = Table("slot", "from", "to", "load", right=("load",), wrapped=("slot", "from", "to"))
    for move in found.moves:
        moves.add_row(move.slot, move.from_queue, move.to_queue, f"{move.share:.2%}")
    during = f" in {proposal.seconds:.0f} seconds" if proposal.seconds else ""
    title = f"Exchange {proposal.slots.exchange!r}: {counted(proposal.counts.total, 'message')}{during} in {proposal.slots.count} slots"
    show(shown, *[moves] * bool(found.moves), _verdict(found), *_hot(proposal), title=title)
    if found.moves:
        _print_file(proposal)


def _verdict(found: Rebalancing) -> str:
    now = f"The fullest queue gets {found.max_before:.2f} times its fair share (target {found.target:g})"
    if not found.moves:
        return f"{now}: no moves needed." if found.met else f"{now}: no move of slots lowers it."
    moves = counted(len(found.moves), "move")
    then = f"{now}. {moves} of {found.share:.2%} of the load bring{'s' * (len(found.moves) == 1)} it to {found.max_after:.2f}"
    fewest = (
        "; fewer moves cannot."
        if found.fewest
        else ". These are the fewest moves found; fewer may be possible."
    )
    return f"{then}{fewest}{_missed(found)}"


def _missed(found: Rebalancing) -> str:
    """What to say of a target that the moves do not meet; empty if they do."""
    if found.met:
        return ""
    why = "no division of the slots meets it" if found.lowest else "no division that meets it was found"
    small = found.max_before - found.max_after < _LITTLE
    return f" The target is missed: {why}{', and the moves are hardly worth it' * small}."


def _hot(proposal: Proposal) -> list[str]:
    found, counts = proposal.found, proposal.counts
    lines = []
    for slot, share in found.hot.items():
        key, times = counts.hottest_key(slot)
        lines.append(
            f"Slot {slot!r} alone has {share:.2%} of the load, more than {found.target:g} times the fair share of any "
            f"queue: no move helps. {times / counts.of_slot[slot]:.0%} of it is the key {key!r}; only a finer key, or a "
            "separate queue for this key, spreads the load."
        )
    return lines


def _print_file(proposal: Proposal) -> None:
    weights = proposal.new_weights
    if weights is None:
        echo("The file needs no change: its weights also match the new division.")
        return
    queues = {literal(queue): count for queue, count in weights.items()}
    echo(
        "After the moves, write these numbers of slots into the file (not earlier, or `apply` moves other slots):"
    )
    echo(yaml_text({"exchanges": {proposal.slots.exchange: {"queues": queues}}}).rstrip())
    if len(set(proposal.capacity.values())) > 1:
        given = " ".join(f"--capacity {queue}={weight}" for queue, weight in proposal.capacity.items())
        echo(f"From then on, pass the capacities to rebalance: {given}")
