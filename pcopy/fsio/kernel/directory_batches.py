"""Batches whose rows are whole directories, which lie beside each other in one directory on either side; at the end
those of small files for an archive.

Only the kernel in C has them, since they are worth it only if one call does all for a directory. It does the plain
ones: the others have ``CARE`` and are done one by one, as all are without this kernel (``Kernel.enters``).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING

from pcopy.fsio.attributes import Attributes
from pcopy.fsio.kernel.batches import KEEP, Batch, Judged, OfNames
from pcopy.fsio.kernel.columns import ATIME, GROUP, MODE, MTIME, OWNER, Rows
from pcopy.named import NamedTuple

if TYPE_CHECKING:
    from pcopy.fsio.kernel.interface import Tally

MEMBER = Struct("=3Q2q4I")
"""A row of ``Members``: inode, size, st_dev, mtime, ctime, mode, user, group, and its bytes in the archive."""

DRESSED = MODE | OWNER | GROUP | ATIME | MTIME
"""The columns of what a directory is given at its end, without extended attributes."""

NEVER = 2**63 - 1
"""A time that has not come."""


class Common(NamedTuple):
    """What the directories of a batch have in common: the st_dev of both sides, and what they are not to be.

    No source is ``shunned`` (st_dev and inode): that is what the root is copied to. A target that has changed since
    ``touched`` (nanoseconds since 1970), or a file in it, wants ``CARE``. ``most`` names are looked at, directories
    with more want ``CARE``. ``in_new``: this job has made the directory around the targets. ``compares``: files whose
    copies are there, and look like them (their times differ by ``window`` seconds at most), are skipped.
    ``links_apart``: files with several names are not skipped, nor copied. ``copies``: small files go into a directory
    that is made at once, as long as that is quick.
    """

    source_device: int
    target_device: int
    shunned: tuple[int, int] = (0, 0)
    touched: int = NEVER
    window: int = 0
    most: int = 0
    in_new: bool = False
    compares: bool = False
    links_apart: bool = False
    copies: bool = False


class Sibling(NamedTuple):
    """A directory that was entered: its metadata, and which its target is (inode and mark, ``pcopy.fsio.identity``).

    ``fresh``: the target was made now. ``inherits``: it belongs to somebody else. ``names`` (joined by slashes) with
    ``rows`` are those that are left; so many others were ``skipped`` or ``copied``, with so many bytes.
    """

    attributes: Attributes
    inode: int
    mark: bytes
    fresh: bool
    inherits: bool
    names: bytes
    rows: Rows
    skipped: tuple[int, int]
    copied: tuple[int, int]


class Entered(Judged):
    """What was found in each directory.

    ``left`` are the directories with which something is left to do; the others that are ``DONE`` have their metadata,
    and of all that is in them so much was ``skipped``, together. A row that is ``ANEW`` has been made, and is no plain
    case all the same.
    """

    skipped: int
    skipped_bytes: int
    left: dict[int, Sibling]


class Enter(OfNames[Entered]):
    """Opens the directories ``names`` of ``directory``, which have these ``inodes``, looks at all that is in them, and
    makes their targets in ``target``, unless these exist."""

    target: int
    inodes: array[int]
    common: Common

    @property
    def descriptors(self) -> tuple[int, ...]:
        return self.directory, self.target


class Summed(NamedTuple):
    """All that is in a directory, which a tally has: bytes of files, those that are allocated for all, and whose it
    is."""

    size: int
    allocated: int
    user: int
    group: int


class Within(NamedTuple):
    """What is in a directory: names (joined by slashes), types (a letter each, as find has them), and, if there are
    directories among these, inodes, as the directory tells them. ``rows`` are None if no columns are wanted. What is
    ``summed`` has no rows, and names only if there are directories among them."""

    names: bytes
    kinds: bytes
    inodes: array[int]
    rows: Rows | None
    summed: Summed | None = None


class Looked(Judged):
    """What is in each directory that is ``DONE``; the others want ``CARE``."""

    found: dict[int, Within]


class Look(OfNames[Looked]):
    """Opens the directories ``names`` of ``directory``, which have these ``inodes`` and lie on ``device``, lists them,
    and looks at what is in them, if columns are wanted (``mask``): at the types ``kinds``, or at all if there are none.
    What is not looked at has zeros. Directories with more than ``most`` names, of 1023 at most, want ``CARE``.

    A ``tally`` gets what is in a directory if all of it has one owner, printable ASCII names, and no file of more than
    ``largest`` bytes, as long as the kernel works here. The ``mask`` has the tally's columns, and owners.
    """

    inodes: array[int]
    device: int
    most: int
    mask: int = 0
    kinds: bytes = b""
    tally: Tally | None = None
    largest: int = 0


class LeftWithin(NamedTuple):
    """Names (joined by slashes) in a directory, with their inodes as it tells them. The ``kinds`` are ``d`` for
    directories that are done themselves, and are to be entered, ``?`` for what wants care. If two sides are compared,
    ``others`` are the inodes on the second one, and ``c`` are files that differ in their contents alone."""

    names: bytes
    kinds: bytes
    inodes: array[int]
    others: array[int]


class SumsWithin(NamedTuple):
    """Items that are done, with all that there is to do with them: of the files the ``bytes``, of all how many were
    ``changed``. If two sides are compared, an item counts once, and ``bytes`` were read of both."""

    files: int = 0
    directories: int = 0
    links: int = 0
    others: int = 0
    bytes: int = 0
    changed: int = 0


class DoneWithin(Judged):
    """What is ``left`` in directories that are ``DONE``, and the ``sums`` of all of these. Others want ``CARE``, and
    nothing in them is done."""

    sums: SumsWithin
    left: dict[int, LeftWithin]


class ToldWithin(DoneWithin):
    """``left`` are the directories in those that are ``DONE``; ``text`` has the paths of all, each with a zero at its
    end."""

    text: bytes = b""


class Paths(OfNames[ToldWithin]):
    """Opens the directories ``names`` of ``directory``, which have these ``inodes`` and lie on ``device``, lists them,
    and tells the paths of what is in them, which begin with ``above`` (with a slash at its end).

    Directories with more than ``most`` names, of 1023 at most, want ``CARE``.
    """

    inodes: array[int]
    device: int
    most: int
    above: bytes


class MendWithin(OfNames[DoneWithin]):
    """Opens the directories ``names`` of ``directory``, which have these ``inodes`` and lie on ``device``, and changes
    all that is in them as ``MendPlain`` does; directories get bits from ``directory_modes``.

    Directories with more than ``most`` names, of 1023 at most, want ``CARE``.
    """

    inodes: array[int]
    device: int
    most: int
    modes: array[int]
    directory_modes: array[int]
    uid: int = KEEP
    gid: int = KEEP


class CompareWithin(OfNames[DoneWithin]):
    """Opens the directories ``names`` of ``directory`` and of ``target``, which have these ``inodes`` there and
    ``others`` here, and lie on these ``devices``, and compares what is in them by ``wanted`` (the bits of
    ``pcopy.tasks.compare.properties``; no attributes). Times may differ by ``window`` seconds.

    Directories with more than ``most`` names on a side, of 255 at most, want ``CARE``.
    """

    target: int
    inodes: array[int]
    others: array[int]
    devices: tuple[int, int]
    most: int
    wanted: int
    window: int = 0

    @property
    def descriptors(self) -> tuple[int, ...]:
        return self.directory, self.target


class RemoveWithin(OfNames[DoneWithin]):
    """Opens the directories ``names`` of ``directory``, which have these ``inodes`` and lie on ``device``, removes what
    is in them, but for directories, and then each of them, if nothing is left in it.

    Those in which something is left want ``CARE``, and so do those with more than ``most`` names, of 1023 at most.
    ``sums`` tell what has gone, of all rows.
    """

    inodes: array[int]
    device: int
    most: int


class Finish(OfNames[Judged]):
    """Gives directories their metadata, ``rows`` (``DRESSED`` and ``INODE``), as far as they have others.

    ``marks`` tell, with the inodes, which they must be; the job has made those that are ``fresh`` (a byte each).
    """

    rows: Rows
    marks: tuple[bytes, ...]
    fresh: bytes
    common: Common


class Bare(OfNames[Judged]):
    """Items that have no extended attribute nor ACL that is copied are ``DONE``; others, and where that can't be told,
    want ``CARE``."""


class Members(Batch[Judged]):
    """Small regular files, of several directories, as members of an archive: header and contents of each go into
    ``room`` (zeros), one after the other. What can't be read just so wants ``CARE``; anything may stand there then.

    ``rows`` are packed (``MEMBER``), one for each of the ``names``; the last number is how many bytes the member takes.
    ``places``: the open directories, how many rows each has, and what stands before their names in the archive.
    ``owners``: for each user and group, what a header has from its type on, and the sum of its bytes. ``pax``: the
    block before a record that tells a time.
    """

    names: bytes
    rows: bytes
    places: Sequence[tuple[int, int, bytes]]
    room: bytearray
    owners: dict[tuple[int, int], tuple[bytes, int]]
    pax: bytes

    @property
    def directory(self) -> int:
        return self.places[0][0]

    @property
    def descriptors(self) -> tuple[int, ...]:
        return tuple({directory for directory, _, _ in self.places})

    def __len__(self) -> int:
        return len(self.rows) // MEMBER.size
