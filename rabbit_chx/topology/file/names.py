"""The names in a file: which there are, what they stand for, and complaints about those that name nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.errors import InvalidValue
from rabbit_chx.topology.file.families import expand
from rabbit_chx.topology.file.source import Bare, did_you_mean, way

if TYPE_CHECKING:
    from rabbit_chx.topology.file.places import Loc
    from rabbit_chx.topology.file.source import Source

__all__ = ["MOST_NAMES", "RESERVED", "Names"]

RESERVED: Final = "amq."
"""What the names of the broker's own objects begin with."""

MOST_NAMES: Final = 100_000
"""The names of queues in a file, families expanded, wherever they stand."""


class Names:
    """What is named in one file, with the source that complaints go to."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.exchanges: list[str] = list(self.written("exchanges"))
        self.queues: dict[str, str] = {}
        """Every queue, and the key that stands for it."""
        self._count = 0

    def written(self, section: str) -> dict[str, Any]:
        """A section as it was written, entries that are wrong by themselves included."""
        found = self.source.value.get(section)
        return found if isinstance(found, dict) else {}

    def complain(self, loc: Loc, got: object, expected: str, hint: str = "", *, at_key: bool = False) -> None:
        """Note that what stands at the end of a way is wrong."""
        self.source.complain(loc, way(loc), got=got, expected=expected, hint=hint, at_key=at_key)

    def is_name(self, loc: Loc, name: str, *, is_queue: bool = False) -> bool:
        """Whether the broker can have something of that name."""
        size = len(name.encode(errors="replace"))
        if 0 < size <= 255:
            return True
        self.complain(
            loc,
            Bare("an empty name") if not size else Bare(f"a name of {size} bytes"),
            "1 to 255 bytes of UTF-8",
            ""
            if size or is_queue
            else "the default exchange is always there, and has its bindings of itself",
            at_key=True,
        )
        return False

    def members(self, loc: Loc, name: str, *, at_key: bool = False) -> tuple[str, ...]:
        """The queues that a name stands for; none where it is malformed."""
        try:
            names = expand(name)
        except InvalidValue as error:
            self.source.note(self.source.place(loc, at_key=at_key), error)
            return ()
        self._count += len(names)
        if self._count > MOST_NAMES:
            self.source.give_up(
                self.source.place(loc, at_key=at_key),
                "number of queues",
                got=Bare(f"more than {MOST_NAMES}, families expanded"),
                expected=f"{MOST_NAMES} in a file",
                hint="Make several files of it",
            )
        longest = max(names, key=lambda each: len(each.encode(errors="replace")))
        return names if self.is_name(loc, longest, is_queue=True) else ()

    def check_exchange(self, loc: Loc, name: str) -> bool:
        """Whether an exchange is in the file, or is the broker's own."""
        if name in self.exchanges or name.startswith(RESERVED):
            return True
        hint = did_you_mean(name, self.exchanges) or "declare it under exchanges"
        self.complain(loc, name, "an exchange of this file", hint)
        return False

    def check_queue(self, loc: Loc, name: str, *, at_key: bool = False) -> bool:
        """Whether a queue is in the file, or is the broker's own."""
        if name in self.queues or name.startswith(RESERVED):
            return True
        hint = did_you_mean(name, self.queues) or "declare it under queues"
        self.complain(loc, name, "a queue of this file", hint, at_key=at_key)
        return False
