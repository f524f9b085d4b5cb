"""What a change of queues has done, and why it could not begin."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from rabbit_chx.advice import Advice
from rabbit_chx.errors import RabbitChxError
from rabbit_chx.topology.planning.steps import Step


@dataclass(frozen=True, slots=True)
class Done:
    """One action that `carry_out` has completed."""

    what: Literal["step", "hold", "drain", "delete", "keep", "release"]
    queue: str = ""
    step: Step | None = None

    def __str__(self) -> str:
        return _SENTENCES[self.what].format(queue=self.queue, step=self.step)


_SENTENCES: Final = {
    "step": "{step}",
    "hold": "held queue {queue!r}",
    "drain": "drained queue {queue!r}",
    "delete": "deleted queue {queue!r}",
    "keep": "kept queue {queue!r}: it is not empty",
    "release": "released queue {queue!r}",
}


class NotConsumed(RabbitChxError):
    """No member consumes some of the queues, so no bindings were changed."""

    def __init__(self, message: str, queues: tuple[str, ...]) -> None:
        super().__init__(message, queues)
        self.queues = queues

    def _text(self) -> str:
        return str(self.args[0])


def not_consumed(missing: Iterable[str], groups: Collection[str]) -> NotConsumed:
    """The error for queues that no member consumes."""
    who = f"no member of group {listed(groups)}" if groups else "no member of any group"
    return NotConsumed(
        f"{who} consumes {listed(missing)}, so no bindings were changed. Start members that consume the "
        f"exchange; if other programs consume it, {Advice.DRAIN_OTHERS}",
        tuple(sorted(missing)),
    )


def listed(names: Iterable[str]) -> str:
    """The names, each in quotes."""
    return ", ".join(map(repr, sorted(names)))
