"""What tasks are made of: small values, made of primitives, without behaviour, and how columns of them are packed."""

from __future__ import annotations

from array import array

from pcopy.fsio.identity import Identity
from pcopy.fsio.problem import Plain
from pcopy.fsio.source import Version
from pcopy.named import NamedTuple

NOWHERE = Identity(-1, -1)
"""The target of a directory that is only read; the source of one that nobody has looked at yet."""


UNMADE = Identity(-2, -2)
"""The target of a directory that a dry run does not make; so nothing is in it."""


class Place(NamedTuple):
    """A directory of a root, on both sides: its path below the root, and the identities that it must have.

    ``fresh``: this job made the target directory. ``inherits``: what is made in it inherits an ACL. ``since``: the run
    before which nothing was made of what is copied into it, and its start (``Job.resumed``); 0 if that is the first.
    """

    root: int
    path: bytes
    source_id: Identity
    target_id: Identity
    fresh: bool
    inherits: bool
    since: tuple[int, int] = (0, 0)

    @property
    def directory(self) -> tuple[int, bytes]:
        """Which one it is, whatever is known of it."""
        return self.root, self.path


def label_of(place: Place) -> bytes:
    """The counts of a directory, and of the items in it, have this label."""
    return b"%d/%b" % (place.root, place.path)


FailedName = tuple[Place, bytes, Plain]
"""A name of an inode that could not be copied, and why."""


class Item(NamedTuple):
    """An item of the source as it was found, by its ``names``: directory and name each, sorted; one is copied first.

    ``size`` is in bytes, 0 for what is no regular file; ``attempt`` counts from 0. Names that have ``failed`` are told
    of when it is known what becomes of the others, since a resumed job makes them links to it.
    """

    mount: int
    inode: int
    size: int
    names: tuple[tuple[Place, bytes], ...]
    attempt: int
    failed: tuple[FailedName, ...] = ()

    @property
    def place(self) -> Place:
        return self.names[0][0]

    @property
    def name(self) -> bytes:
        return self.names[0][1]

    @property
    def links(self) -> tuple[tuple[Place, bytes], ...]:
        return self.names[1:]


COPIED_BEFORE = 2
"""The attempt at what was copied and is not as it should be: what was excused was counted then."""


class Known(NamedTuple):
    """What is known of an item's contents: its type byte, size in bytes and digest, and the source's version then.

    The digest is empty where none is wanted, or as long as none is known.
    """

    kind: bytes
    size: int
    digest: bytes
    version: Version


class OpenFile(NamedTuple):
    """A split file under way: its version when it was opened, and the temporary file that is being filled.

    ``over``: mode, owner and group of the existing file that is written over instead. Then there is no temporary file:
    ``temporary`` is a name for messages between ranks only, and ``made`` is the existing file. ``shown``: the mode and
    owner that the server shows for the file while it is filled, if they are not the ones that it was given.
    """

    item: Item
    version: Version
    temporary: bytes
    made: Identity
    over: tuple[int, ...] = ()
    cloned: bool = False
    shown: tuple[int, ...] = ()


class Copy(NamedTuple):
    """The copy of an item: which inode was ``made``, and what it holds.

    ``chunk`` and ``writers``: in how large parts (bytes; 0: as a whole) which hosts (a byte each) have written it.
    """

    made: Identity
    known: Known
    chunk: int
    writers: bytes


class Contents(NamedTuple):
    """A large file to read. ``known.digest`` is empty on the source's side, and what is expected on the target's.

    ``chunk`` is the size of its parts in bytes (0: to be chosen), of which the hosts ``writers`` (a byte each; one for
    all, or one a part) wrote the copy. ``counter`` is where it has been counted, -1 if it is to be. A copy with further
    names stands for the ``group`` of all of them.
    """

    place: Place
    name: bytes
    known: Known
    on_source: bool
    attempt: int
    counter: int
    chunk: int = 0
    writers: bytes = b""
    group: Item | None = None

    @property
    def names(self) -> tuple[tuple[Place, bytes], ...]:
        return ((self.place, self.name),) if self.group is None else self.group.names


class Entries(NamedTuple):
    """Entries of the directory ``path`` of a dataset; the name ``b""``: the directory itself exists.

    ``side`` tells datasets apart that are compared: 0, and 1 for the second. ``kinds`` holds a type byte each,
    ``sizes`` 8 bytes each, ``digests`` one digest each. Of several entries of one name that of the last ``round`` is
    meant.
    """

    side: int
    path: bytes
    names: bytes
    kinds: bytes
    sizes: bytes
    digests: bytes
    round: int


class Unnamed(NamedTuple):
    """What is whole and has a temporary name; ``inode`` and ``mark`` (``pcopy.fsio.identity``) tell which it is."""

    temporary: bytes
    inode: int
    mark: bytes


class Retry(NamedTuple):
    """What a resumed job does about a failure: it counts ``counted`` (counters and numbers) back, and runs a task.

    The ``task`` is packed, and empty where there is none; ``phase`` is the first in which it may run. ``untouched``:
    for certain this job has made nothing yet of what the task copies. The item was counted in the directory ``place``.
    """

    task: bytes = b""
    phase: int = 0
    counted: tuple[tuple[int, int], ...] = ()
    untouched: bool = False
    place: Place | None = None


def bucket_of(inode: int) -> int:
    """Inodes with several names are told apart by bucket; the number of ranks may change in a resumed job, this not.

    What was made together has numbers beside each other, and so few notes tell of a directory.
    """
    return (inode >> 8) % 64


def pack_numbers(numbers: list[int]) -> bytes:
    """Unsigned 64-bit integers as one string, in this machine's byte order."""
    return array("Q", numbers).tobytes()


def unpack_numbers(numbers: bytes) -> array[int]:
    return array("Q", numbers)
