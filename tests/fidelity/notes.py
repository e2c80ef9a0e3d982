"""Why a cell of the matrix is not "yes": what happens instead. The first note that fits a cell is its footnote."""

from __future__ import annotations

from typing import NamedTuple

from tests.fidelity.rows import Row
from tests.fidelity.runs import CP, EXCUSED, FAILS, HANGS, NO, NOTHING, PCOPY, RSYNC, Column


class Note(NamedTuple):
    """Fits a cell if all that is given does; ``attribute`` and ``kind`` are how the row's begin."""

    cell: str
    text: str
    tool: str = ""
    attribute: str = ""
    kind: str = ""
    root: bool | None = None

    def fits(self, row: Row, column: Column, cell: str) -> bool:
        return (
            self.cell == cell
            and self.tool in ("", column.tool)
            and row.attribute.startswith(self.attribute)
            and row.kind.startswith(self.kind)
            and self.root in (None, column.root)
        )


_A_FILE = "a file over"
_MODE_0 = "An ordinary user can't read what has mode 0, not even the owner. It is told, and the exit status is not 0."
_SILENCE = "Left out in silence, status 0: an ordinary user may not set it."

NOTES = (
    # What no ordinary user can have
    Note(FAILS, "Only root can make devices. The item fails: it is told, and the exit status is not 0.",
         attribute="the item itself", root=False),
    Note(NO, "rsync skips devices when an ordinary user runs it: a line on standard output, status 0.",
         RSYNC, "the item itself", root=False),
    Note(FAILS, _MODE_0, attribute="directories of mode 0000", root=False),
    Note(FAILS, _MODE_0, attribute="files of mode 0000", root=False),
    Note(EXCUSED, "An ordinary user may not give files to others, nor set capabilities. The item is copied without "
         "that, in no case with set-id bits then, and counted as `excused` in the summary. The group is kept where the "
         "user is a member of it.", PCOPY, root=False),
    Note(NO, _SILENCE, attribute="owner and group", root=False),
    Note(NO, _SILENCE, attribute="`security.capability`", root=False),
    Note(NO, "Another user's set-id program becomes a set-id program of whoever copies it.",
         RSYNC, "set-id bits of others", root=False),
    # What doesn't fit
    Note(FAILS, "It can't be kept: ext4 has room for some 4,000 bytes of attributes. The item is copied without it, "
         "told as failed, and the exit status is not 0.", attribute="an attribute too large"),
    Note(NO, "It can't be kept, and cp doesn't say so: the attribute is dropped, status 0.",
         CP, "an attribute too large"),
    # Contents and names
    Note(NO, "The copy is empty, status 0: rsync believes the size.", RSYNC, "files in /proc"),
    Note(FAILS, "Joined paths reach PATH_MAX (4,096 bytes); what is below is not copied. It is told.",
         attribute="trees deeper"),
    # Times
    Note(NO, "Not part of `-a`; `-U` (`--atimes`) adds it.", RSYNC, "access time"),
    Note(NO, "Reading a file changes its access time unless it is opened with O_NOATIME (rsync: `--open-noatime`).",
         attribute="the source's own access times"),
    # What a destination hands down
    Note(NO, "cp leaves the set-gid bit that a new directory got from the one above.", CP, "no set-gid bit"),
    # Targets that exist
    Note(FAILS, "cp puts no directory in the place of anything else; it says so.", CP, "a directory over"),
    Note(FAILS, "cp puts nothing in the place of a directory, even of an empty one; it says so.",
         CP, kind="an empty directory"),
    Note(FAILS, "cp follows the link, and doesn't write to a directory; it says so.",
         CP, _A_FILE, "a symlink to a directory"),
    Note(FAILS, "cp neither writes through a dangling symlink nor replaces it; it says so.",
         CP, _A_FILE, "a dangling symlink"),
    Note(NO, "cp follows the link: what it leads to is overwritten, the link stays, status 0.",
         CP, _A_FILE, "a symlink to a file"),
    Note(FAILS, "cp opens the target to write to it, and may not or can't; it says so. (`-f` would replace it.)",
         CP, _A_FILE),
    Note(HANGS, "cp opens the FIFO to write to it, and waits until somebody reads.", CP, _A_FILE, "a FIFO"),
    Note(NO, "cp writes the contents to the device, status 0.", CP, _A_FILE, "a device", True),
    Note(NO, "cp sets what the source has, and leaves what else is there.", CP, "attributes that the source lacks"),
)  # fmt: skip


def note_for(row: Row, column: Column, cell: str) -> str:
    """The text of the footnote; raises ``LookupError`` for a cell that nobody has explained."""
    if cell == NOTHING:
        return f"Not a question: {row.root_only}."
    for note in NOTES:
        if note.fits(row, column, cell):
            return note.text
    raise LookupError(f"no note says why {row.attribute}, {row.kind or 'all'} is {cell} in {column}")
