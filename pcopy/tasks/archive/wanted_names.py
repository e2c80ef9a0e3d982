"""Members that are asked for by their names, each with all that is below; and which of them an archive holds."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pcopy.archive.member import DIRECTORY, Member, Unsafe, safe_path
from pcopy.tasks.base.kind import Note
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import pack_numbers, unpack_numbers
from pcopy.text import shown
from pcopy.walk.selection import Selection

_PATTERN = re.compile(rb"[*?\[]")
_SHOWN = 10
"""Names that are told at most."""


class WantedNames:
    """Without names all members are asked for."""

    def __init__(self, names: Sequence[bytes]) -> None:
        self._names = names
        self._numbers = {_bare(name): number for number, name in enumerate(names)}
        self.found = set[int]()
        """Numbers of those that a member has."""
        self.excluded = 0
        """How many members that were asked for filters have left out."""

    def __bool__(self) -> bool:
        """Are there names?"""
        return bool(self._numbers)

    def takes(self, name: bytes) -> bool:
        """Is the member of this name, or one that it lies in, asked for?"""
        name, takes = _bare(name), False
        while True:
            number = self._numbers.get(name)
            if number is not None:
                self.found.add(number)
                takes = True
            if not name:
                return takes
            name = name.rpartition(b"/")[0]

    def selects(self, member: Member, selection: Selection, asked_as: bytes | None = None) -> bool:
        """Return True if it is asked for, if anything is, and not excluded where it would be unpacked to.

        So is a member whose name leads out of the directory, whatever is excluded: it is reported. ``asked_as`` is its
        name in the archive, if it is unpacked under another one.
        """
        if self._numbers and not self.takes(member.name if asked_as is None else asked_as):
            return False
        try:
            selected = is_selected(member, safe_path(member.name), selection)
        except Unsafe:
            return True
        self.excluded += not selected
        return selected

    @property
    def lacking(self) -> str:
        """What is told of the names that no member has; empty if there are none."""
        names = [self._names[number] for number in sorted({*self._numbers.values()} - self.found)]
        more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
        if not names:
            return ""
        return f"holds nothing of these names: {', '.join(map(shown, names[:_SHOWN]))}{more}{_why(names)}"


def _why(names: Sequence[bytes]) -> str:
    """What may be wrong with names that no member has."""
    if any(name.endswith(b"\r") for name in names):
        return "; if lines end as those of Windows do, give the list without that: tr -d '\\r'"
    return "; they are names, not patterns; see --include" if any(map(_PATTERN.search, names)) else ""


class WantedOfRank(WantedNames):
    """Those of a job, as a rank has found them; rank 0 hears of all."""

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank.options.members)
        self._told = set[int]()

    def tell(self, result: Result) -> None:
        if len(self.found) > len(self._told):
            result.spawn(NamesFound(pack_numbers(sorted(self.found - self._told))), owner=0)
            self._told |= self.found


class NamesFound(Note, code=187, doing="noting names"):
    """The numbers of names that are asked for and that members have, packed."""

    numbers: bytes

    def run(self, rank: Rank, result: Result) -> None:
        rank.own(WantedOfRank).found.update(unpack_numbers(self.numbers))


def is_selected(member: Member, path: bytes, selection: Selection) -> bool:
    """Do the filters take it as what is unpacked to ``path``?"""
    if not selection.anything:
        return True
    is_directory = member.kind == DIRECTORY
    if selection.excludes_below(path + b"/" if is_directory else path):
        return False
    return is_directory or selection.takes_item(member.st_mode, member.size, member.mtime)


def _bare(name: bytes) -> bytes:
    return b"/".join(part for part in name.split(b"/") if part not in (b"", b"."))
