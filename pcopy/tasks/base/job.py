"""Immutable description of a job: its roots, its options and its counters. All values consist of primitives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.mounted import MountRootTuple
from pcopy.fsio.preserve import Preserve as Preserve
from pcopy.walk.selection import Select as Select

if TYPE_CHECKING:
    from pcopy.tasks.base.item_outcomes import ItemOutcomes

DeviceInode = tuple[int, int]
"""Device and inode number of a file, as rank 0 sees them."""

Mount = tuple[bytes, MountRootTuple]
"""Path of a mount point, written with the names of the roots' directories, and the root that must be mounted there."""


class Root(NamedTuple):
    """One source and its target.

    ``source`` and ``target`` are directories that are opened once at the start. Every later name is looked up relative
    to them.

    Fields:
        source, target: absolute paths of the two directories.
        item: name of a single item in ``source``, which is not a directory. If it is empty, ``source`` itself is
            copied.
        name: name of the copy in ``target``. If it is empty, the copy is ``target`` itself, which must exist; only a
            directory can be copied so.
        source_shown, target_shown: the two paths as the user wrote them, for messages.
        source_id, target_id: device and inode number of the two directories.
    """

    source: bytes
    target: bytes
    item: bytes
    name: bytes
    source_shown: bytes
    target_shown: bytes
    source_id: DeviceInode
    target_id: DeviceInode

    def path_below_target(self, path: bytes) -> bytes:
        """Return the path below ``target`` of the item that has ``path`` below ``source``."""
        return b"/".join(part for part in (b"" if self.item else self.name, path) if part)


def mount_codes(roots: Sequence[Root]) -> list[tuple[int, int]]:
    """Return the mount codes of the source and the target of each root. Directories on one device, as rank 0 sees it,
    share a code.
    """
    sources: dict[int, int] = {}
    targets: dict[int, int] = {}
    return [
        (sources.setdefault(root.source_id[0], number), targets.setdefault(root.target_id[0], number))
        for number, root in enumerate(roots)
    ]


EXISTING_CHOICES = ("replace", "changed", "newer", "skip", "fail")
"""Values of ``--existing``: what to do with a target that exists."""

KEEPING_CHOICES = ("newer", "skip", "fail")
"""Values of ``--existing`` that forbid to overwrite an item unless the option explicitly permits it."""


def reason_keeping_is_refused(existing: str) -> str:
    """Return the reason why ``existing``, one of ``KEEPING_CHOICES``, is refused if files are written under
    their final names.
    """
    return (
        f"--existing {existing} would keep a file that an interrupted copy left incomplete under its own name: "
        "write --existing changed"
    )


class Options(NamedTuple):
    """Options of a job, as the user gave them. Sizes are in bytes, and 0 stands for an automatic choice.

    ``modify_window`` is in seconds. ``stripe`` is empty unless the user gives a layout.
    """

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
    """True if each file is written under its final name, in order and by one rank (``pcopy.fsio.sequential``)."""
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
    """True if the outcome of each item is reported to rank 0."""
    bwlimit: int = 0
    oplimit: int = 0
    delete: bool = False
    max_delete: int = -1
    delete_all: bool = False
    backup: bytes = b""
    told: int = 0
    """Number of bytes that the list of a tool that changes existing items stores about each item in addition to its
    path (``pcopy.jobs.path_list``).
    """
    whole_directories: bool = False
    """True if a directory in the list of a tool stands for the directory and everything below it."""
    never_removed: tuple[DeviceInode, ...] = ()
    """Directories that are never removed, whatever path the list names them by."""
    missing_is_fine: bool = False
    """True if a listed path that does not exist is not a failure."""
    change: tuple[str, int, int, bytes, bytes] = ("", -1, -1, b"", b"")
    """New properties of items that are changed in place.

    These are a mode in the syntax of chmod(1), owner and group (-1: unchanged), an access ACL and a default ACL, both
    in the form of ``pcopy.fsio.backend.batches.SetMetadata``.
    """
    compare: int = 0
    """Bit set of the properties by which two trees are compared (``pcopy.tasks.compare.properties``)."""
    archive_file: bytes = b""
    """Path of the archive that is created or unpacked."""
    archive_version: tuple[int, ...] = ()
    """Inode number, size and time of the file from which the archive is read, when the job began."""
    archive_contents: bytes = b""
    """Path of the decompressed archive, if the archive is one compressed stream; else empty, and the archive itself is
    read.
    """
    compress_as: str = ""
    numeric_owner: bool = False
    strip_components: int = 0
    members: tuple[bytes, ...] = ()
    """Members of the archive that are unpacked; empty for all members."""
    walk: tuple[Any, ...] = ()
    """Fields of a ``pcopy.walk.walk_request.WalkRequest``; empty if the job does not walk."""
    compress: str = ""
    """Compression of regular files while they are copied, for example ``zstd:3``; empty for none."""
    decompress: bool = False
    resumes: bool = False
    """True if the job continues an archive that an interrupted job left incomplete."""
    archive_interval: float = 60.0
    """Seconds between two records of the progress of an archive."""
    sparse_limit: int = 1 << 22
    """Largest number of data extents of a sparse member that is read; 0 for no limit. See
    ``pcopy.archive.records.MOST_EXTENTS``.
    """

    @property
    def has_compression(self) -> bool:
        """True if files are compressed or decompressed while they are copied. Their names decide which files
        (``recoded``).
        """
        return bool(self.compress) or self.decompress

    @property
    def compares_existing(self) -> bool:
        """True if existing items that are not replaced must equal their source, in size and time or in contents
        (``--existing changed``).
        """
        return self.existing == "changed"

    @property
    def keeps_existing(self) -> bool:
        """True if existing items must not be overwritten unless ``--existing`` explicitly permits it."""
        return self.existing in KEEPING_CHOICES

    @property
    def writes_signature(self) -> bool:
        """True if a signature or a manifest of the dataset is written."""
        return bool(self.signature or self.manifest)


class Job(NamedTuple):
    """A job as its ranks know it.

    If ``copies`` is False, sources are only read for their digests. Each root is then a dataset that is compared with
    the other root, or with the manifest ``against`` if one is given; the roots' targets are not used.

    Fields:
        name: unique name of the job, part of the names of its temporary files.
        run: number of the current run: 1 for the first start, one more for each resume.
        roots: sources and their targets.
        options: options of the user.
        copies: True if the job copies; False if it only reads.
        against: path of a manifest.
        began: start of the first run, by the clock of the destination, in nanoseconds since 1970.
        resumed: start of the current run, if it is a later one; else 0.
        own: directories of the job itself that lie in a source, as number of the root and path below it. They are not
            copied.
        mounts: mount points that must exist below the roots, on every host and in every run.
        cut_short: True if an earlier run was killed and may have left an incomplete file under its final name.
        listed: path, on rank 0, of the list of paths to copy (``pcopy.jobs.files_from``); empty if everything is
            copied.
        spared: items of targets that are not deleted, in the form of ``own``.
        doubted: time by the clock of the destination. Items that changed later may be the work of another, unfinished
            job and may not be on stable storage. 0 if there is no such job.
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
    def temporary_name_id(self) -> str:
        """The string by which names of temporary files identify their job and run."""
        return f"{self.name}-{self.run}"


class Totals(NamedTuple):
    """Counters of a job. Each rank has its own; the progress tree adds them up.

    - found = copied + skipped + failed.
    - copied = files + directories + symlinks + special + hardlinks.
    - ``changed`` and ``vanished`` are parts of ``failed``.

    Fields:
        found_bytes: sizes of the regular files that were found.
        unscanned: directories that were found and not read yet; it falls to 0 when scanning ends.
        bytes: sizes of the files that were copied completely.
        moved: bytes copied so far, including those of unfinished files, for progress.
        excused: metadata that could not be set for lack of privilege or support, which is not a failure.
        unsynced: file systems whose last sync failed.
        for_link, for_name, for_finish, for_seal, for_repair, for_again: tasks that were deferred to a later phase.
        extra: target directories that contain more names than their source.
        to_verify: items to be read back. An item that is copied again is counted again.
        to_verify_bytes: sizes of the files to be read back; the size of an inode counts once.
        verified: items that were read back and equal their source.
        confirmed_bytes: sizes of the files among ``verified``.
        refuted: items that were read back and differ from their source.
        verified_bytes: bytes that this run has read back.
        mended: skipped items whose metadata was updated.
        excluded: skipped items that filters exclude.
        deleted: extra items that this run deleted.
        to_delete: extra items that earlier runs of the job deleted, and those that this run counted before deletion.
            Neither ``deleted`` nor ``to_delete`` is part of ``found``.
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
        """Number of items of all types that this job created completely in the destination."""
        return self.files + self.directories + self.symlinks + self.special + self.hardlinks


class Failure(NamedTuple):
    """An item that is missing or wrong in the destination, for the user.

    Fields:
        path: path of the item.
        operation: name of the operation that failed.
        errno: error number; 0 if no system call failed.
        message: explanation in words.
    """

    path: bytes
    operation: str
    errno: int
    message: str


class Sink(Protocol):
    """Receiver of progress and failures on rank 0. It is called in the thread that runs tasks and must
    return quickly.
    """

    def progress(self, phase: str, totals: Totals, silent: Sequence[int]) -> None:
        """Receive the latest sums of all ranks.

        Args:
            phase: name of the phase.
            silent: ranks that have not answered lately.
        """

    def failures(self, failures: Sequence[Failure]) -> None:
        """Receive failed items, in the order in which they were reported to rank 0."""

    def notice(self, text: str) -> None:
        """Receive one line for the user that is not a failure."""

    def items(self, items: Sequence[ItemOutcomes]) -> None:
        """Receive the outcomes of items, if ``Options.itemize`` is set."""


class ForwardingSink:
    """A sink that passes everything on to another sink.

    A subclass overrides the methods for the events that it also handles, and calls the inherited method in each.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def progress(self, phase: str, totals: Totals, silent: Sequence[int]) -> None:
        self._sink.progress(phase, totals, silent)

    def failures(self, failures: Sequence[Failure]) -> None:
        self._sink.failures(failures)

    def notice(self, text: str) -> None:
        self._sink.notice(text)

    def items(self, items: Sequence[ItemOutcomes]) -> None:
        self._sink.items(items)
