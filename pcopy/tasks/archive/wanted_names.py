"""Members that the user has named on the command line. A name includes everything below it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pcopy.archive.member import DIRECTORY, ArchiveMember, UnsafeMemberNameError, safe_member_path
from pcopy.tasks.base.job import ArchiveOptions
from pcopy.tasks.base.kind import TaskWithoutDirectory
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import pack_numbers, unpack_numbers
from pcopy.text import printable_path
from pcopy.walk.selection import ItemSelector

_SHELL_PATTERN = re.compile(rb"[*?\[]")
"""Matches names that look like shell patterns, which ptar does not expand."""
_MAX_SHOWN_NAMES = 10
"""Largest number of names in an error message."""


class WantedNames:
    """The names of members that the user has given. If there are none, all members are wanted."""

    def __init__(self, names: Sequence[bytes]) -> None:
        self._names = names
        self._numbers = {_normalised_name(name): number for number, name in enumerate(names)}
        self.found = set[int]()
        """Indices of those names that at least one member matches."""
        self.excluded_count = 0
        """Number of members that the user has named, and that filters exclude."""

    def __bool__(self) -> bool:
        """Return True if any name was given."""
        return bool(self._numbers)

    def match_wanted_name(self, name: bytes) -> bool:
        """Return True if the user has named the member ``name`` or a directory above it. Add the names that match to
        those that were found.
        """
        name, takes = _normalised_name(name), False
        while True:
            number = self._numbers.get(name)
            if number is not None:
                self.found.add(number)
                takes = True
            if not name:
                return takes
            name = name.rpartition(b"/")[0]

    def is_wanted_and_selected(
        self, member: ArchiveMember, selection: ItemSelector, original_name: bytes | None = None
    ) -> bool:
        """Return True if ``member`` is to be extracted or listed: the user has named it, and the filters do not exclude
        it.

        ``member.name`` is the name under which it is extracted; ``original_name`` is its name in the archive, if that
        is another one. If the name leads out of the target, True is returned without applying the filters, so that the
        caller reports the member.
        """
        if self._numbers and not self.match_wanted_name(member.name if original_name is None else original_name):
            return False
        try:
            selected = is_selected_by_filters(member, safe_member_path(member.name), selection)
        except UnsafeMemberNameError:
            return True
        self.excluded_count += not selected
        return selected

    @property
    def missing_names_text(self) -> str:
        """The error text about names that no member matches; "" if there are none."""
        names = [self._names[number] for number in sorted({*self._numbers.values()} - self.found)]
        more = f" and {len(names) - _MAX_SHOWN_NAMES:,} more" if len(names) > _MAX_SHOWN_NAMES else ""
        if not names:
            return ""
        return (
            "has no members with these names: "
            f"{', '.join(map(printable_path, names[:_MAX_SHOWN_NAMES]))}{more}{_missing_names_hint(names)}"
        )


def _missing_names_hint(names: Sequence[bytes]) -> str:
    """Return the end of the error message: a possible reason why no member matches ``names``, or ""."""
    if any(name.endswith(b"\r") for name in names):
        return "; if the list has line ends of Windows, remove them: tr -d '\\r'"
    return (
        "; they are names, not patterns; to select by a pattern, use --include"
        if any(map(_SHELL_PATTERN.search, names))
        else ""
    )


class WantedNamesOnRank(WantedNames):
    """The names that the user has given, and which of them this rank has found in the archive. Ranks send what they
    have found to rank 0, which reports the names that none has found.
    """

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank.program_options(ArchiveOptions).members)
        self._sent = set[int]()

    def send_found_names(self, result: TaskResult) -> None:
        """Send rank 0 the names that were found since the last call."""
        if len(self.found) > len(self._sent):
            result.spawn_task(NamesFoundNote(pack_numbers(sorted(self.found - self._sent))), owner=0)
            self._sent |= self.found


class NamesFoundNote(TaskWithoutDirectory, code=187, doing="recording names"):
    """Message to rank 0 with the names that a rank has found in the archive, of those that the user has given, as
    packed indices.
    """

    numbers: bytes

    def run(self, rank: Rank, result: TaskResult) -> None:
        rank.shared_instance(WantedNamesOnRank).found.update(unpack_numbers(self.numbers))


def is_selected_by_filters(member: ArchiveMember, path: bytes, selection: ItemSelector) -> bool:
    """Return True if the filters in ``selection`` do not exclude ``member``; ``path`` is the path to which it is
    extracted.
    """
    if not selection.has_filters:
        return True
    is_directory = member.kind == DIRECTORY
    if selection.excludes_path_or_ancestor(path + b"/" if is_directory else path):
        return False
    return is_directory or selection.is_status_within_limits(member.st_mode, member.size, member.mtime)


def _normalised_name(name: bytes) -> bytes:
    """Return ``name`` without empty and ``.`` components."""
    return b"/".join(part for part in name.split(b"/") if part not in (b"", b"."))
