"""What a job is: its roots, its options, and what is counted. All values are made of primitives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pcopy.fsio.mounted import PlainRoot
from pcopy.fsio.preserve import Preserve as Preserve
from pcopy.named import NamedTuple
from pcopy.walk.selection import Select as Select

if TYPE_CHECKING:
    from pcopy.tasks.base.itemized import Itemized

DeviceInode = tuple[int, int]
"""A file's (device, inode), as rank 0 sees them."""

Mount = tuple[bytes, PlainRoot]
"""The path of a mount point, by the names of the roots' directories, and what has to be there."""


class Root(NamedTuple):
    """One source and its target.

    ``source`` and ``target`` are absolute paths of *directories*, opened once at the start; every later name is looked
    up below them. With an empty ``item`` the directory ``source`` itself is copied, otherwise the entry ``item`` of
    it, which is no directory. The copy is called ``name`` in ``target``; with an empty ``name`` it is ``target``
    itself (only for directories that exist). ``*_shown`` are the two paths as the user gave them, for messages.
    """

    source: bytes
    target: bytes
    item: bytes
    name: bytes
    source_shown: bytes
    target_shown: bytes
    source_id: DeviceInode
    target_id: DeviceInode

    def below_target(self, path: bytes) -> bytes:
        """The path below ``target`` of what has ``path`` below ``source``."""
        return b"/".join(part for part in (b"" if self.item else self.name, path) if part)


def mount_codes(roots: Sequence[Root]) -> list[tuple[int, int]]:
    """Each root's (source, target) mount codes: roots that are on one device, as rank 0 saw it, share one."""
    sources: dict[int, int] = {}
    targets: dict[int, int] = {}
    return [
        (sources.setdefault(root.source_id[0], number), targets.setdefault(root.target_id[0], number))
        for number, root in enumerate(roots)
    ]


EXISTING = ("replace", "changed", "newer", "skip", "fail")
"""What may become of a target that exists."""

KEEPING = ("newer", "skip", "fail")
"""Those of them under which nothing may be overwritten that the user has not given up."""


def unrecognised(existing: str) -> str:
    """Return why ``existing``, one of ``KEEPING``, is refused where files are written under their own names."""
    return (
        f"--existing {existing} would keep a file that an interrupted copy left incomplete under its own name: "
        "write --existing changed"
    )


class Options(NamedTuple):
    """What the user wants of a job. Sizes are in bytes, ``modify_window`` in seconds; 0 stands for automatic.
    ``stripe`` is empty unless the user says something."""

    preserve: Preserve = Preserve()
    existing: str = "replace"
    modify_window: int = 0
    chunk_size: int = 0
    block_size: int = 4 << 20
    sync: bool = True
    max_errors: int = 0
    umask: int = 0o022
    termination: str = "tree"
    checksum: bool = False
    inplace: bool = False
    sequential: bool = False
    """True if each file is written under its own name, in order and by one rank (``pcopy.fsio.sequential``)."""
    dereference: bool = False
    one_file_system: bool = False
    hash: str = ""
    signature: bytes = b""
    manifest: bytes = b""
    verify: bool = False
    repair: bool = False
    direct: bool = False
    drop_cache: bool = False
    dry_run: bool = False
    reflink: str = "auto"
    fsync: bool = False
    stripe: str = ""
    stripe_table: str = ""
    stripe_affinity: bool = False
    group_lock: bool = False
    select: Select = Select()
    files_from: bytes = b""
    nul_separated: bool = False
    itemize: bool = False
    """Is rank 0 told what becomes of each item?"""
    bwlimit: int = 0
    oplimit: int = 0
    delete: bool = False
    max_delete: int = -1
    delete_all: bool = False
    backup: bytes = b""
    told: int = 0
    """Bytes that the list of a tool which changes what is there tells of each item (``pcopy.jobs.listed``)."""
    whole_directories: bool = False
    """Do directories that a list names go with all that is in them?"""
    never_removed: tuple[DeviceInode, ...] = ()
    """Directories that are not removed, by whatever name a list has them."""
    missing_is_fine: bool = False
    """Is a path that was listed, and is not there, no failure?"""
    change: tuple[str, int, int, bytes, bytes] = ("", -1, -1, b"", b"")
    """What items get that are changed in place: a mode as chmod(1) has it, owner, group (-1: as they are), an access
    ACL and a default ACL as ``pcopy.fsio.kernel.batches.Mend`` has them."""
    compare: int = 0
    """The properties by which two trees are compared side by side (``pcopy.tasks.compare.properties``)."""
    archive_file: bytes = b""
    """The archive that is made, or unpacked."""
    archive_version: tuple[int, ...] = ()
    """Of what is read of one that is unpacked: inode, size and time when the job began."""
    archive_contents: bytes = b""
    """Where it was decompressed to, if it is one stream; else it is read itself."""
    compress_as: str = ""
    numeric_owner: bool = False
    strip_components: int = 0
    members: tuple[bytes, ...] = ()
    """What is unpacked of an archive; nothing: all of it."""
    walk: tuple[Any, ...] = ()
    """What ``pcopy.walk.walk_wish.WalkWish`` has."""
    compress: str = ""
    """How regular files are compressed on their way: ``zstd:3``; empty: not at all."""
    decompress: bool = False
    resumes: bool = False
    """Does a job go on with the archive that an interrupted one has left?"""
    archive_interval: float = 60.0
    """Seconds after which it is recorded anew what is made of an archive."""
    sparse_limit: int = 1 << 22
    """The most stretches of data of a sparse member that is read (``pcopy.archive.records.MOST_EXTENTS``); 0: any
    number."""

    @property
    def recodes(self) -> bool:
        """Are files compressed or decompressed on their way? Then their names tell which (``recoded``)."""
        return bool(self.compress) or self.decompress

    @property
    def compares(self) -> bool:
        """Is what stays compared with the source, by size and time or by contents? Else it may be anything."""
        return self.existing == "changed"

    @property
    def keeps(self) -> bool:
        """Must nothing be overwritten of which it is not certain that it may be?"""
        return self.existing in KEEPING

    @property
    def signs(self) -> bool:
        """Is the dataset's digest wanted?"""
        return bool(self.signature or self.manifest)


class Job(NamedTuple):
    """``name`` is unique per job and part of its temporary files' names; ``run`` counts its (re)starts from 1.

    A job that does not copy reads its sources for their digests only: each root is a dataset of its own, to be compared
    with the other, or with the manifest ``against`` if that is given. The roots' targets mean nothing then.
    ``began`` is the time of the first run's start on the destination's clock, in nanoseconds since 1970;
    ``resumed`` is that of a later run's. ``own`` are directories, as (number of the root, path below it), which are the
    job's own although they lie in a source: they are no items of it. ``mounts`` are all that have to be there below the
    roots, on every host and in every run. ``cut_short``: an earlier run was killed, and may have left a file with its
    final name that is not whole. ``listed``: where rank 0 finds the list of the paths that are copied
    (``pcopy.jobs.files_from``), if not all are. ``spared`` are what is not deleted from targets, as ``own``.
    ``doubted``: what has changed in the destination since then may be the work of another job that has not finished,
    and not be durable; 0: there is no such job. The same clock as ``began``.
    """

    name: str
    run: int
    roots: tuple[Root, ...]
    options: Options
    copies: bool = True
    against: bytes = b""
    began: int = 0
    resumed: int = 0
    own: tuple[tuple[int, bytes], ...] = ()
    mounts: tuple[Mount, ...] = ()
    cut_short: bool = False
    listed: bytes = b""
    spared: tuple[tuple[int, bytes], ...] = ()
    doubted: int = 0

    @property
    def writer(self) -> str:
        """What the names of its temporary files carry."""
        return f"{self.name}-{self.run}"


class Totals(NamedTuple):
    """What a job counts; each rank has its own and the progress tree adds them up.

    found = copied + skipped + failed, where copied = files + directories + symlinks + special + hardlinks, and where
    changed and vanished are parts of failed. ``bytes`` counts the sizes of files that were copied whole, ``moved``
    all bytes as they move (for progress), ``found_bytes`` the sizes of the regular files found. ``unscanned`` counts
    directories that were found and not yet read (it falls to 0 when scanning is over),
    ``unsynced`` file systems whose last sync failed, ``for_*`` tasks put aside for a later phase, ``extra``
    target directories that hold more than the source's.

    ``to_verify`` counts the items that are to be read back, ``to_verify_bytes`` the sizes of their files (one inode's
    once); ``verified`` those that were found right, with files of ``confirmed_bytes``, and ``refuted`` those that were
    not, ``verified_bytes`` all bytes as they are read back by this run. An item that is copied again is to be read back
    again. ``mended`` are those of the skipped items that got metadata of their sources, ``excluded`` those
    that filters leave out.
    ``deleted`` are items that the source lacks; ``to_delete`` are those that earlier runs of the job have deleted, and
    those that this run has counted beforehand. Both were never found.
    """

    found: int = 0
    found_bytes: int = 0
    unscanned: int = 0
    files: int = 0
    directories: int = 0
    symlinks: int = 0
    special: int = 0
    hardlinks: int = 0
    bytes: int = 0
    moved: int = 0
    skipped: int = 0
    skipped_bytes: int = 0
    deleted: int = 0
    failed: int = 0
    failed_bytes: int = 0
    changed: int = 0
    vanished: int = 0
    excused: int = 0
    warnings: int = 0
    unsynced: int = 0
    for_link: int = 0
    for_name: int = 0
    for_finish: int = 0
    for_seal: int = 0
    for_repair: int = 0
    to_verify: int = 0
    to_verify_bytes: int = 0
    verified: int = 0
    verified_bytes: int = 0
    refuted: int = 0
    extra: int = 0
    confirmed_bytes: int = 0
    mended: int = 0
    to_delete: int = 0
    for_again: int = 0
    excluded: int = 0

    @property
    def copied(self) -> int:
        """Items of every type that are in the destination, whole, because of this job."""
        return self.files + self.directories + self.symlinks + self.special + self.hardlinks


class Failure(NamedTuple):
    """An item that is not in the destination as it should be: on which path (bytes) which operation met which errno.

    ``errno`` is 0 where no system call failed; ``message`` then says what is wrong.
    """

    path: bytes
    operation: str
    errno: int
    message: str


class Sink(Protocol):
    """Receives progress and failures on rank 0, in the thread that runs tasks; it must be quick."""

    def progress(self, phase: str, totals: Totals, silent: Sequence[int]) -> None:
        """The sums over all ranks as last known, ``phase`` by its name; ``silent`` ranks have not answered lately."""

    def failures(self, failures: Sequence[Failure]) -> None:
        """Items that failed, in the order in which rank 0 learned of them."""

    def notice(self, text: str) -> None:
        """Something worth a line that is no failure."""

    def items(self, items: Sequence[Itemized]) -> None:
        """What has become of items, where ``Options.itemize`` asks for that."""


class InFront:
    """A sink in front of another one, to which it hands on all that it is told.

    Who wants to hear something, too, overrides that method, and calls this one's.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def progress(self, phase: str, totals: Totals, silent: Sequence[int]) -> None:
        self._sink.progress(phase, totals, silent)

    def failures(self, failures: Sequence[Failure]) -> None:
        self._sink.failures(failures)

    def notice(self, text: str) -> None:
        self._sink.notice(text)

    def items(self, items: Sequence[Itemized]) -> None:
        self._sink.items(items)
