"""Footnotes: why a cell of the matrix is not "yes", and what happens instead. The first note that fits a cell is
used."""

from __future__ import annotations

from typing import NamedTuple

from tests.fidelity.rows import Row
from tests.fidelity.runs import CP, EXCUSED, FAILS, HANGS, NO, NOTHING, PCOPY, RSYNC, Column


class Note(NamedTuple):
    """A footnote that fits a cell if all given fields match; ``attribute`` and ``kind`` are prefixes of those of the
    row."""

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
_MODE_0 = (
    "An ordinary user can't read a file or directory of mode 0, not even as its owner. The tool reports it, and the "
    "exit status is not 0."
)
_SILENCE = "Omitted without a message, status 0: an ordinary user may not set it."

NOTES = (
    # Impossible for ordinary users
    Note(FAILS, "Only root can create devices. The item fails: the tool reports it, and the exit status is not 0.",
         attribute="the item itself", root=False),
    Note(NO, "rsync skips devices when an ordinary user runs it: it prints a line on standard output, status 0.",
         RSYNC, "the item itself", root=False),
    Note(FAILS, _MODE_0, attribute="directories of mode 0000", root=False),
    Note(FAILS, _MODE_0, attribute="files of mode 0000", root=False),
    Note(EXCUSED, "An ordinary user may not give files to others, nor set capabilities. pcopy copies the item without "
         "them and without set-id bits, and counts it as `excused` in the summary. It keeps the group if the user is a "
         "member of it.", PCOPY, root=False),
    Note(NO, _SILENCE, attribute="owner and group", root=False),
    Note(NO, _SILENCE, attribute="`security.capability`", root=False),
    Note(NO, "Another user's set-id program becomes a set-id program of the user who copies it.",
         RSYNC, "set-id bits of others", root=False),
    # Attributes that do not fit
    Note(FAILS, "ext4 has room for some 4,000 bytes of attributes. The tool copies the item without the attribute and "
         "reports the failure, and the exit status is not 0.", attribute="an attribute too large"),
    Note(NO, "ext4 cannot store the attribute. cp drops it without a message, status 0.",
         CP, "an attribute too large"),
    # Contents and names
    Note(NO, "The copy is empty, status 0: rsync relies on the size.", RSYNC, "files in /proc"),
    Note(FAILS, "Joined paths reach PATH_MAX (4,096 bytes). The tool does not copy the items below, and reports that.",
         attribute="trees deeper"),
    # Times
    Note(NO, "Not part of `-a`; `-U` (`--atimes`) adds it.", RSYNC, "access time, in"),
    Note(NO, "Reading a file changes its access time unless it is opened with O_NOATIME (rsync: `--open-noatime`).",
         attribute="access times of the source"),
    # Inheritance from the destination directory
    Note(NO, "cp does not remove the set-gid bit that a new directory inherited from its parent directory.",
         CP, "no set-gid bit"),
    # Existing targets
    Note(FAILS, "cp replaces no other item by a directory, and reports that.", CP, "a directory over"),
    Note(FAILS, "cp replaces no directory by another item, not even an empty one, and reports that.",
         CP, kind="an empty directory"),
    Note(FAILS, "cp follows the link, cannot write to the directory, and reports that.",
         CP, _A_FILE, "a symlink to a directory"),
    Note(FAILS, "cp neither writes through a dangling symlink nor replaces it, and reports that.",
         CP, _A_FILE, "a dangling symlink"),
    Note(NO, "cp follows the link and overwrites the file to which it leads. The link remains, status 0.",
         CP, _A_FILE, "a symlink to a file"),
    Note(FAILS, "cp cannot open the target for writing, and reports that. (`-f` would replace it.)",
         CP, _A_FILE),
    Note(HANGS, "cp opens the FIFO for writing, and waits for a reader.", CP, _A_FILE, "a FIFO"),
    Note(NO, "cp writes the contents to the device, status 0.", CP, _A_FILE, "a device", True),
    Note(NO, "cp sets the attributes of the source, and does not remove other ones.",
         CP, "attributes that the source lacks"),
)  # fmt: skip


def note_for(row: Row, column: Column, cell: str) -> str:
    """Return the text of the footnote; raise ``LookupError`` for a cell without one."""
    if cell == NOTHING:
        return f"Not applicable: {row.root_only}."
    for note in NOTES:
        if note.fits(row, column, cell):
            return note.text
    raise LookupError(f"no note says why {row.attribute}, {row.kind or 'all'} is {cell} in {column}")
